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

// Bounds of a template and of what it makes.
const (
	maxTemplate = 4096
	maxText     = 4096
)

const defaultText = `{{.Key}} {{if .Raised}}` +
	`{{if .Throttled}}is throttled{{else}}has reached {{.Level}} % of its limit{{end}}: {{.Used}} of {{.Limit}} ` +
	`{{else}}is below {{.Level}} % of {{.Limit}} {{end}}{{if .InFlight}}in flight{{else}}per {{.Window}}{{end}}` +
	`{{if not .Raised}} again{{end}} (rule {{.Rule}})`

// Fields is what a template sees of an alert.
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

// text makes the text of an alert.
type text struct {
	template *template.Template
	escape   func(string) string // of a key, which anybody may have chosen
}

// slackEscape is what Slack asks for, so that a key is no link and mentions nobody.
var slackEscape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// newText compiles a template, empty for the default, and tries it: what cannot work is an error here.
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

// templateError is without the name of the template, which says nothing.
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

// of makes the text. A template that fails with this alert, though not with the samples, gives way to the default.
func (x *text) of(t api.Transition) string {
	out, err := x.render(t)
	if err != nil {
		out, _ = (&text{usual, x.escape}).render(t)
	}
	return out
}

var usual = template.Must(template.New("text").Parse(defaultText))

// render makes the text; one that is too long is cut.
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

// SendSample sends an alert that is none, to try the sink. At an Alertmanager it ends by itself.
func (s *Sink) SendSample(ctx context.Context, prefix string) error {
	return s.deliver(ctx, prefix, Sample(api.StateRaised, time.Now()), time.Time{})
}

// Sample is an alert to try a sink with. Its rule and key name nobody's.
func Sample(state api.State, now time.Time) api.Transition {
	ms := now.UnixMilli()
	t := api.Transition{Rule: "sample", Key: "sample:key", State: state, Level: 80, Limit: 100, WindowMs: 60_000,
		Used: 80, Version: ms, AtMs: ms, SinceMs: ms, UntilMs: ms + 30_000, ExpiresMs: ms + 40_000}
	t.ID = t.MessageID("sample")
	return t
}
