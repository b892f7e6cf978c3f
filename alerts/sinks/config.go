package sinks

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/document"
	"github.com/streamcounter/streamcounter/internal/glob"
	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/windows"
)

// The types of sinks.
const (
	Webhook      = "webhook"      // JSON, signed according to Standard Webhooks
	Alertmanager = "alertmanager" // its API v2
	Slack        = "slack"        // an incoming webhook of Slack, or of a service that accepts the same
)

// Bounds and defaults of a file.
const (
	maxSinks       = 100
	maxPatterns    = 100
	defaultTimeout = 10 * time.Second
	longestTimeout = 60 * time.Second
	defaultGiveUp  = 24 * time.Hour
	longestGiveUp  = 6 * 24 * time.Hour // SC_ALERTS keeps 7 days
	defaultResolve = 5 * time.Minute
	longestResolve = 24 * time.Hour
)

// spec is a sink as it is written in the file.
type spec struct {
	Name, Type                      string
	URL, URLFile                    string
	SecretFile, TokenFile, CAFile   string
	Rules, Keys                     []string
	Levels                          []int64
	SendResolved, Shadow            bool
	Text                            string
	Timeout, GiveUp, ResolveAfter   time.Duration
	url, secret, token, certificate string // the contents of the files
}

// read reads the file strictly, and finds the mistakes that the file alone shows. Its errors quote nothing of the
// file: a secret may be anywhere in it by mistake, and a URL of Slack is a secret.
func read(name string, data []byte) (*document.Document, []*spec, error) {
	var list []*spec
	d, err := document.ReadSecret(name, data, "sinks, a list", func(d *document.Document) document.Setter {
		return d.Mapping(document.Field{Name: "sinks", Need: document.Needed,
			Set: d.List(func(n *document.Node, at string) error {
				s := &spec{SendResolved: true, Timeout: defaultTimeout, GiveUp: defaultGiveUp,
					ResolveAfter: defaultResolve}
				list = append(list, s)
				return s.fields(d)(n, at)
			})})
	})
	if err != nil {
		return nil, nil, err
	}
	if len(list) > maxSinks {
		return nil, nil, d.ErrorAt("sinks", "there are %d sinks: want at most %d", len(list), maxSinks)
	}
	names := map[string]string{}
	for i, s := range list {
		at := fmt.Sprintf("sinks[%d].", i)
		if !nameForm.MatchString(s.Name) {
			return nil, nil, d.ErrorAt(at+"name", "name: want 1 to 32 of a-z, 0-9 and -")
		}
		if first := names[s.Name]; first != "" {
			return nil, nil, d.ErrorAt(at+"name", "the name %s is taken in line %d", s.Name, d.Line(first))
		}
		names[s.Name] = at + "name"
		for _, path := range []*string{&s.URLFile, &s.SecretFile, &s.TokenFile, &s.CAFile} {
			*path = reload.Beside(name, *path)
		}
		if err := s.validate(d, at); err != nil {
			return nil, nil, err
		}
	}
	return d, list, nil
}

var nameForm = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

func (s *spec) fields(d *document.Document) document.Setter {
	text := func(name string, to *string) document.Field {
		return document.Field{Name: name, Set: document.Leaf(d, to, document.Text)}
	}
	list := func(name string, to *[]string) document.Field {
		return document.Field{Name: name, Set: document.Leaves(d, to, document.Text)}
	}
	span := func(name string, to *time.Duration) document.Field {
		return document.Field{Name: name, Set: document.Leaf(d, to, func(n *document.Node) (time.Duration, error) {
			return windows.ParseDuration(n.Value)
		})}
	}
	name, kind := text("name", &s.Name), text("type", &s.Type)
	name.Need, kind.Need = document.Needed, document.Needed
	return d.Mapping(name, kind, text("url", &s.URL), text("url_file", &s.URLFile),
		text("secret_file", &s.SecretFile), text("token_file", &s.TokenFile), text("ca_file", &s.CAFile),
		list("rules", &s.Rules), list("keys", &s.Keys),
		document.Field{Name: "levels", Set: document.Leaves(d, &s.Levels, document.Within(1, api.LevelThrottled))},
		document.Field{Name: "send_resolved", Set: document.Leaf(d, &s.SendResolved, document.Truth)},
		document.Field{Name: "shadow", Set: document.Leaf(d, &s.Shadow, document.Truth)},
		text("text", &s.Text), span("timeout", &s.Timeout), span("give_up", &s.GiveUp),
		span("resolve_after", &s.ResolveAfter))
}

// validate finds mistakes that do not depend on the contents of the files that the sink names.
func (s *spec) validate(d *document.Document, at string) error {
	bad := func(field, format string, args ...any) error {
		return d.ErrorAt(at+field, "%s of sink %s: "+format, append([]any{field, s.Name}, args...)...)
	}
	has := func(field string) bool { return d.Line(at+field) != 0 }
	switch {
	case !slices.Contains([]string{Webhook, Alertmanager, Slack}, s.Type):
		given := d.Quoted(s.Type, Webhook, Alertmanager, Slack)
		if given != "" {
			given = "it is" + given + ": "
		}
		return bad("type", "%swant %s, %s or %s", given, Webhook, Alertmanager, Slack)
	case has("url") == has("url_file"):
		return bad("name", "want either url or url_file")
	case s.Type == Webhook && s.SecretFile == "":
		return bad("name", "want secret_file, a file with the secret that signs (whsec_…)")
	case s.Type != Webhook && has("secret_file"):
		return bad("secret_file", "only a sink of type %s signs", Webhook)
	case s.Type == Slack && has("token_file"):
		return bad("token_file", "a sink of type %s has its secret in the URL: want url_file", Slack)
	case s.Type != Alertmanager && has("resolve_after"):
		return bad("resolve_after", "only a sink of type %s has it", Alertmanager)
	case s.Type == Alertmanager && !s.SendResolved:
		return bad("send_resolved", "Alertmanager needs resolved alerts; set send_resolved in its own receivers")
	case s.Timeout < 100*time.Millisecond || s.Timeout > longestTimeout:
		return bad("timeout", "it is %s: want 100ms to %s", windows.FormatDuration(s.Timeout),
			windows.FormatDuration(longestTimeout))
	case s.GiveUp < time.Second || s.GiveUp > longestGiveUp:
		return bad("give_up", "it is %s: want 1s to %s", windows.FormatDuration(s.GiveUp),
			windows.FormatDuration(longestGiveUp))
	case s.ResolveAfter < 20*time.Second || s.ResolveAfter > longestResolve:
		return bad("resolve_after", "it is %s: want 20s to %s", windows.FormatDuration(s.ResolveAfter),
			windows.FormatDuration(longestResolve))
	}
	for _, f := range []struct {
		name string
		list []string
	}{{"rules", s.Rules}, {"keys", s.Keys}} {
		if has(f.name) && (len(f.list) == 0 || len(f.list) > maxPatterns) {
			return bad(f.name, "want 1 to %d patterns; without the field all are meant", maxPatterns)
		}
		for i, p := range f.list {
			if _, err := glob.Parse(p); err != nil {
				return bad(fmt.Sprintf("%s[%d]", f.name, i), "%w", err)
			}
		}
	}
	if has("levels") && len(s.Levels) == 0 {
		return bad("levels", "want some of 1 to %d; without the field all are meant", api.LevelThrottled)
	}
	if has("url") {
		if err := checkURL(s.URL); err != nil {
			return bad("url", "%w", err)
		}
	}
	return nil
}

// checkURL says what is wrong with a URL, but never quotes it.
func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		return errors.New("want https://HOST/… (http:// sends alerts and tokens in plain text)")
	}
	port, err := strconv.ParseUint(cmp.Or(u.Port(), "443"), 10, 16)
	switch {
	case err != nil || port == 0:
		return errors.New("bad port: want 1 to 65535")
	case u.User != nil:
		return errors.New("it has a name or a password: want token_file for a bearer token")
	case u.Fragment != "":
		return errors.New("it has a fragment (#…), which is never sent")
	}
	return nil
}
