package config

import (
	"fmt"
	"log/slog"

	"github.com/streamcounter/streamcounter/internal/glob"
	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/windows"
)

// SourceConfig says where limits and rules come from.
type SourceConfig struct {
	// Limits is the configuration of envoyproxy/ratelimit, a file or a directory.
	Limits string
	// Rules is the rules file; empty: Base.
	Rules string
	// Base are rules beside the limits if there is no rules file; nil: none.
	Base *windows.Rules
	Options
	// RuleOptions are those of windows.Parse.
	RuleOptions []windows.ParseOption
	Log         *slog.Logger // nil: silence
}

// Source has the current limits, and the rules that are made of them and of the rules file. It reloads all files when
// one changes.
type Source struct{ *reload.Files[loaded] }

type loaded struct {
	limits *Limits
	rules  *windows.Rules
}

// NewSource loads limits and rules; in Rules those of the rules file come first.
func NewSource(c SourceConfig) (*Source, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	name := "limits"
	if c.Rules != "" {
		name = "rules and limits"
	}
	files, err := reload.OpenList(name, c.Log, func(files []reload.File) (loaded, error) { return c.parse(files) },
		func() ([]string, error) {
			paths, err := filesOf(c.Limits)
			if c.Rules != "" {
				paths = append([]string{c.Rules}, paths...)
			}
			return paths, err
		})
	if err != nil {
		return nil, err
	}
	return &Source{files}, nil
}

// Limits returns the current limits.
func (s *Source) Limits() *Limits { return s.Value().limits }

// Rules returns the current rules, those of the rules file first.
func (s *Source) Rules() *windows.Rules { return s.Value().rules }

func (c SourceConfig) parse(files []reload.File) (l loaded, err error) {
	base := c.Base
	if c.Rules != "" {
		if base, err = windows.Parse(c.Rules, files[0].Data, c.RuleOptions...); err != nil {
			return l, err
		}
		base.LogWarnings(c.Log)
		files = files[1:]
	}
	if l.limits, err = parse(files, c.Options); err != nil {
		return l, err
	}
	l.rules, err = l.limits.combine(base)
	return l, err
}

// combine puts the limits' rules after the given rules. It returns an error if a given rule takes keys of a limit:
// workers would count these keys by that rule, and checks by the limit.
func (l *Limits) combine(base *windows.Rules) (*windows.Rules, error) {
	if base == nil {
		return l.rules, nil
	}
	for _, rule := range l.rules.List() {
		key := example(rule.Match)
		if first := base.Match(key); first != nil {
			first := first.Rules()[0]
			return nil,
				fmt.Errorf(
					"rule %q (match %q) of the rules file also takes keys of the limit %q, such as %q: want a "+
						"match that leaves these out",
					first.Name, first.Match, rule.Name, key)
		}
	}
	both, err := windows.Combine(base, l.rules)
	if err != nil {
		return nil, fmt.Errorf("rules file and limits: %w", err)
	}
	return both, nil
}

// example returns a key that fits a limit's pattern.
func example(match string) string {
	g := glob.Split(match)
	key := g.Literal
	for g.Rest != "" {
		g = glob.Split(g.Rest[1:])
		key += "x" + g.Literal
	}
	return key
}
