package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

const (
	oneRule  = "rules:\n  - {name: users, match: \"user:*\", windows: [{limit: 5, per: 1m}]}\n"
	oneLimit = "domain: edge\ndescriptors:\n  - {key: client, rate_limit: {unit: minute, requests_per_unit: 3}}\n"
)

// writeFile puts the whole file there at once: a watcher never sees half of it.
func writeFile(t testing.TB, path, text string) {
	t.Helper()
	draft := filepath.Join(t.TempDir(), "draft")
	testkit.Must(t, os.WriteFile(draft, []byte(text), 0o644))
	testkit.Must(t, os.Rename(draft, path))
}

func perUnit(t *testing.T, s *Source) uint32 {
	t.Helper()
	l := s.Limits()
	limit, ok := l.Find("edge", descriptorOf("client=a"))
	if !ok {
		return 0
	}
	if s.Rules().Match(limit.Key) != limit.Plan {
		t.Errorf("the rules have another rule for %s than its limit", limit.Key)
	}
	return limit.PerUnit
}

func TestBothFilesAreOneSourceOfRules(t *testing.T) {
	dir := t.TempDir()
	rules, limits := filepath.Join(t.TempDir(), "rules.yml"), filepath.Join(dir, "limits.yaml")
	writeFile(t, rules, oneRule)
	writeFile(t, limits, oneLimit)
	s, err := NewSource(SourceConfig{Limits: dir, Rules: rules, Options: Options{Tag: "client"}})
	testkit.Must(t, err)
	list := s.Rules().List()
	if len(list) != 2 || list[0].Name != "users" || list[1].Match != "edge/{client=*}" || perUnit(t, s) != 3 {
		t.Fatalf("%+v", list)
	}
	writeFile(t, limits, strings.Replace(oneLimit, "3", "4", 1))
	testkit.Must(t, s.Reload())
	writeFile(t, rules, strings.Replace(oneRule, "users", "people", 1))
	testkit.Must(t, s.Reload())
	if s.Rules().Named("people") == nil || perUnit(t, s) != 4 {
		t.Errorf("%+v", s.Rules().List())
	}
	// A file that is added to the directory, or removed, is noticed. (internal/reload proves that files are watched.)
	more := filepath.Join(dir, "more.yml")
	writeFile(t, more, strings.Replace(oneLimit, "edge", "more", 1))
	testkit.Must(t, s.Reload())
	if s.Limits().Len() != 2 {
		t.Errorf("%d limits", s.Limits().Len())
	}
	testkit.Must(t, os.Remove(more))
	testkit.Must(t, s.Reload())
	if s.Limits().Len() != 1 {
		t.Errorf("%d limits", s.Limits().Len())
	}
	// A mistake in either changes nothing.
	writeFile(t, rules, "rules: 5")
	fails(t, s.Reload(), rules+":1:8: ")
	writeFile(t, rules, oneRule)
	writeFile(t, limits, "domain: 5\ndescriptors: 6")
	fails(t, s.Reload(), limits+":2:14: ")
	testkit.Must(t, os.Remove(rules))
	if err := s.Reload(); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if s.Rules().Named("people") == nil || perUnit(t, s) != 4 {
		t.Errorf("%+v", s.Rules().List())
	}
}

// A rule that would take a limit's keys in the workers is a mistake.
func TestRulesMayNotTakeKeysOfLimits(t *testing.T) {
	dir := t.TempDir()
	limits := filepath.Join(dir, "limits.yaml")
	writeFile(t, limits, oneLimit)
	base := func(name, match string) *windows.Rules {
		r, err := windows.NewRules([]*windows.Rule{{Name: name, Match: match,
			Windows: []windows.Window{{Limit: 1, Per: windows.MaxWindow}}}})
		testkit.Must(t, err)
		return r
	}
	for _, c := range []struct{ name, match, want string }{
		{"all", "*",
			`rule "all" (match "*") of the rules file also takes keys of the limit "edge--client", ` +
				`such as "edge/client=x"`},
		{"edge--client", "user:*", `rule "edge--client": want each name once`},
		{"own", "edge/other=*", ""},
	} {
		_, err := NewSource(SourceConfig{Limits: limits, Base: base(c.name, c.match)})
		if c.want == "" {
			testkit.Must(t, err)
			continue
		}
		fails(t, err, c.want)
	}
}
