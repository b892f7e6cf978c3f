package rls

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/streamcounter/streamcounter/document"
	"github.com/streamcounter/streamcounter/windows"
)

// SourceConfig says where limits and rules come from.
type SourceConfig struct {
	// Limits is the configuration of envoyproxy/ratelimit, a file or a directory.
	Limits string
	// Rules is the rules file; empty: Base.
	Rules string
	// Base are rules beside the limits where there is no rules file; nil: none.
	Base *windows.Rules
	// Options are those of Load.
	Options []Option
	Log     *slog.Logger // nil: silence
}

// NewSource loads both and gives them as one source of rules, those of the
// rules file first, which reloads both when either changes. LimitsOf gives the
// limits that belong to its rules.
func NewSource(c SourceConfig) (*windows.Source, error) {
	o, err := optionsOf(c.Options)
	if err != nil {
		return nil, err
	}
	in := windows.Input{Name: c.Limits, Watch: []string{filepath.Dir(c.Limits)}, Read: c.reader(o)}
	if info, err := os.Stat(c.Limits); err == nil && info.IsDir() {
		in.Watch = append(in.Watch, c.Limits)
	}
	if c.Rules != "" {
		in.Name = c.Rules + ", " + c.Limits
		if dir := filepath.Dir(c.Rules); dir != in.Watch[0] {
			in.Watch = append(in.Watch, dir)
		}
	}
	return windows.NewSourceFrom(in, c.Log)
}

// LimitsOf gives the present limits of a source, nil where it has none.
func LimitsOf(s *windows.Source) *Limits {
	l, _ := s.Extra().(*Limits)
	return l
}

func (c SourceConfig) reader(o options) func() ([]byte, func() (*windows.Rules, any, error), error) {
	return func() ([]byte, func() (*windows.Rules, any, error), error) {
		texts, err := readAll(c.Limits)
		if err != nil {
			return nil, nil, err
		}
		var rules []text
		if c.Rules != "" {
			data, err := document.File(c.Rules)
			if err != nil {
				return nil, nil, fmt.Errorf("load rules: %w", err)
			}
			rules = []text{{c.Rules, data}}
		}
		return append(content(rules), content(texts)...), func() (*windows.Rules, any, error) {
			base := c.Base
			if c.Rules != "" {
				var err error
				if base, err = windows.Parse(c.Rules, rules[0].data); err != nil {
					return nil, nil, err
				}
			}
			limits, err := parse(texts, o)
			if err != nil {
				return nil, nil, err
			}
			both, err := limits.combine(base)
			return both, limits, err
		}, nil
	}
}

// combine puts the limits' rules after those given. One of these that takes keys
// of a limit is an error: who folds would count them by it, and who checks by
// the limit.
func (l *Limits) combine(base *windows.Rules) (*windows.Rules, error) {
	switch {
	case base == nil && l.rules == nil:
		return nil, fmt.Errorf("no limit and no rule: want at least one")
	case base == nil:
		return l.rules, nil
	case l.rules == nil:
		return base, nil
	}
	for _, rule := range l.rules.List() {
		key := example(rule.Match)
		if first := base.Match(key); first != nil {
			return nil, fmt.Errorf("rule %q (match %q) of the rules file also takes keys of the limit %q, such as %q: want a match that leaves these out",
				first.Name, first.Match, rule.Name, key)
		}
	}
	both, err := windows.Combine(base, l.rules)
	if err != nil {
		return nil, fmt.Errorf("rules file and limits: %w", err)
	}
	return both, nil
}

// example is a key that fits a limit's pattern.
func example(match string) string {
	var b strings.Builder
	for i := 0; i < len(match); i++ {
		switch match[i] {
		case '*':
			b.WriteByte('x')
			continue
		case '\\':
			i++
		}
		b.WriteByte(match[i])
	}
	return b.String()
}
