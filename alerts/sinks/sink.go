package sinks

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/document"
	"github.com/streamcounter/streamcounter/internal/glob"
)

// Sink is a destination of alerts, with the selection of alerts that it receives.
type Sink struct {
	spec
	rules, keys []glob.Glob
	text        *text
	signers     []signer
	http        *http.Client
}

// same reports whether everything that a delivery depends on is unchanged.
func (s *Sink) same(other *Sink) bool {
	return fmt.Sprintf("%#v", s.spec) == fmt.Sprintf("%#v", other.spec)
}

// sink makes a Sink from the fields of the file and the contents of the named files.
func (s *spec) sink(d *document.Document, at string, named map[string]string) (*Sink, error) {
	bad := func(field string, err error) error {
		return d.ErrorAt(at+field, "%s of sink %s: %w", field, s.Name, err)
	}
	s.url, s.secret, s.token, s.certificate = s.URL, named[s.SecretFile], named[s.TokenFile], named[s.CAFile]
	from := "url"
	if s.URLFile != "" {
		from, s.url = "url_file", named[s.URLFile]
		if err := checkURL(s.url); err != nil {
			return nil, bad("url_file", err)
		}
	}
	u, _ := url.Parse(s.url) // checkURL has checked it
	if s.Type == Alertmanager && strings.HasSuffix(strings.TrimRight(u.Path, "/"), alertsPath) {
		return nil, bad(from, fmt.Errorf("want it without %s, which is added", alertsPath))
	}
	if s.TokenFile != "" && (s.token == "" || strings.ContainsFunc(s.token, func(c rune) bool { return c <= ' ' })) {
		return nil, bad("token_file", fmt.Errorf("want one token in the file"))
	}
	out := &Sink{spec: *s, rules: globs(s.Rules), keys: globs(s.Keys)}
	var err error
	if out.text, err = newText(s.Text, s.Type); err != nil {
		return nil, bad("text", err)
	}
	if s.Type == Webhook {
		if out.signers, err = signers(s.secret); err != nil {
			return nil, bad("secret_file", err)
		}
	}
	if out.http, err = newHTTP(s.Timeout, s.certificate); err != nil {
		return nil, bad("ca_file", err)
	}
	return out, nil
}

// globs compiles patterns that are already validated.
func globs(patterns []string) (list []glob.Glob) {
	for _, p := range patterns {
		g, _ := glob.Parse(p)
		list = append(list, g)
	}
	return list
}

// takes reports whether an alert is for this sink.
func (s *Sink) takes(t api.Transition) bool {
	fits := func(list []glob.Glob, text string) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(g glob.Glob) bool { return g.Fits(text) })
	}
	return (s.Shadow || !t.Shadow) && (s.SendResolved || t.State != api.StateCleared) &&
		(len(s.Levels) == 0 || slices.Contains(s.Levels, int64(t.Level))) &&
		fits(s.rules, t.Rule) && fits(s.keys, t.Key)
}

// String describes what the sink delivers, without the path and query of its URL, which can be a secret.
func (s *Sink) String() string {
	all := func(list []string, what string) string {
		if len(list) == 0 {
			return "all " + what
		}
		return what + " " + strings.Join(list, ", ")
	}
	var levels []string
	for _, level := range s.Levels {
		levels = append(levels, fmt.Sprintf("%d%%", level))
	}
	u, _ := url.Parse(s.url) // checkURL has checked it
	text := fmt.Sprintf("%s: %s at %s://%s; %s, %s, %s", s.Name, s.Type, u.Scheme, u.Host, all(s.Rules, "rules"),
		all(s.Keys, "keys"), all(levels, "levels"))
	if !s.SendResolved {
		text += "; not when they clear"
	}
	if s.Shadow {
		text += "; of shadow rules too"
	}
	return text
}
