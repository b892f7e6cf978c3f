package sinks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/template"
	"text/template/parse"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// Bounds of a template and of the text that it produces.
const (
	maxTemplate = 4096
	maxText     = 4096
)

const defaultText = `{{.Key}} {{if .Raised}}` +
	`{{if .Throttled}}is throttled{{else}}has reached {{.Level}} % of its limit{{end}}: {{.Used}} of {{.Limit}} ` +
	`{{else}}is below {{.Level}} % of {{.Limit}} {{end}}{{if .InFlight}}in flight{{else}}per {{.Window}}{{end}}` +
	`{{if not .Raised}} again{{end}} (rule {{.Rule}})`

// Fields are the fields of an alert that a template can use.
type Fields struct {
	ID, Rule, Key    string
	State            string // raised or cleared
	Raised           bool
	Throttled        bool // the level is 100
	Level            int  // percent
	Limit, Used      int64
	Window           string // 1m, 1h, 31d
	InFlight         bool   // Limit units may be reserved at once
	At, Since, Until time.Time
	Shadow           bool
}

func fieldsOf(t api.Transition, escape func(string) string) Fields {
	return Fields{ID: t.ID, Rule: t.Rule, Key: escape(t.Key), State: string(t.State),
		Raised: t.State == api.StateRaised, Throttled: t.Level == api.LevelThrottled, Level: t.Level, Limit: t.Limit,
		Used: t.Used, Window: windows.FormatDuration(time.Duration(t.WindowMs) * time.Millisecond), At: t.At(),
		Since: time.UnixMilli(t.SinceMs).UTC(), Until: time.UnixMilli(t.UntilMs).UTC(), Shadow: t.Shadow,
		InFlight: t.InFlight}
}

// text renders the text of an alert.
type text struct {
	template *template.Template
	escape   func(string) string // for a key, which anybody may have chosen
}

// slackEscape escapes the characters that Slack requires, so that a key is not a link and mentions nobody.
var slackEscape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// newText compiles a template, or the default if it is empty, and tries it: a template that cannot work is an error
// here.
func newText(source, kind string) (*text, error) {
	if source == "" {
		source = defaultText
	}
	if len(source) > maxTemplate {
		return nil, fmt.Errorf("it has %d bytes: want at most %d", len(source), maxTemplate)
	}
	compiled, err := template.New("text").Option("missingkey=error").Parse(source)
	if err != nil {
		return nil, templateError(err)
	}
	// Without loops and calls of other templates, a template ends after as many steps as it has.
	if len(compiled.Templates()) > 1 {
		return nil, errors.New("it defines another template: want none")
	}
	if compiled.Tree == nil {
		return nil, errors.New("it makes no text")
	}
	if err := onlyPlain(compiled.Root); err != nil {
		return nil, err
	}
	x := &text{compiled, func(s string) string { return s }}
	if kind == Slack {
		x.escape = slackEscape.Replace
	}
	for _, state := range []api.State{api.StateRaised, api.StateCleared} {
		if _, err := x.render(Sample(state, time.Now())); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// templateError returns err without the name of the template, which has no meaning for the reader.
func templateError(err error) error {
	return errors.New(strings.TrimPrefix(strings.TrimPrefix(err.Error(), "template: "), "text:"))
}

func onlyPlain(n parse.Node) error {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		for _, one := range n.Nodes {
			if err := onlyPlain(one); err != nil {
				return err
			}
		}
	case *parse.IfNode:
		return errors.Join(onlyPlain(n.List), onlyPlain(n.ElseList))
	case *parse.WithNode:
		return errors.Join(onlyPlain(n.List), onlyPlain(n.ElseList))
	case *parse.RangeNode:
		return errors.New("it has a range: want text, fields, if and with")
	case *parse.TemplateNode:
		return errors.New("it calls a template: want text, fields, if and with")
	}
	return nil
}

// of returns the text. If the template fails with this alert, although it worked with the samples, the default is
// used.
func (x *text) of(t api.Transition) string {
	out, err := x.render(t)
	if err != nil {
		out, _ = (&text{defaultTemplate, x.escape}).render(t)
	}
	return out
}

var defaultTemplate = template.Must(template.New("text").Parse(defaultText))

// render returns the text; a text that is too long is cut.
func (x *text) render(t api.Transition) (string, error) {
	var b bounded
	if err := x.template.Execute(&b, fieldsOf(t, x.escape)); err != nil && !errors.Is(err, errLong) {
		return "", templateError(err)
	}
	return strings.ToValidUTF8(b.String(), ""), nil
}

var errLong = errors.New("the text is too long")

type bounded struct{ strings.Builder }

func (b *bounded) Write(p []byte) (int, error) {
	if left := maxText - b.Len(); len(p) > left {
		n, _ := b.Builder.Write(p[:left])
		return n, errLong
	}
	return b.Builder.Write(p)
}

// SendSample sends a sample alert, to try the sink. In an Alertmanager it expires.
func (s *Sink) SendSample(ctx context.Context, prefix string) error {
	return s.deliver(ctx, prefix, Sample(api.StateRaised, time.Now()), time.Time{})
}

// Sample returns an alert to try a sink with. Its rule and key are not real.
func Sample(state api.State, now time.Time) api.Transition {
	ms := now.UnixMilli()
	t := api.Transition{Rule: "sample", Key: "sample:key", State: state, Level: 80, Limit: 100, WindowMs: 60_000,
		Used: 80, Version: ms, AtMs: ms, SinceMs: ms, UntilMs: ms + 30_000, ExpiresMs: ms + 40_000}
	t.ID = t.MessageID("sample")
	return t
}
