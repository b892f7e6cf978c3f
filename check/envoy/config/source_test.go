package config

import (
	"errors"
	"fmt"
	"net"
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

// Each testdata/busted_<what>.yml is refused with file, line and column, and what is wrong: busted_<what>.txt has it.
func TestBusted(t *testing.T) {
	files, err := filepath.Glob("testdata/busted_*.yml")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, path := range files {
		if _, err := open(path); err == nil {
			t.Errorf("%s is loaded", path)
		} else {
			testkit.Golden(t, strings.TrimSuffix(path, "yml")+"txt", err.Error()+"\n")
		}
	}
}

func TestLoadOfADirectory(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) { writeFile(t, filepath.Join(dir, name), text) }
	write("c.txt", "nonsense")
	write(".hidden.yaml", "nonsense")
	_, err := open(dir)
	fails(t, err, dir, "no *.yaml")
	write("b.yml", "domain: x\n")
	write("a.yaml", "domain: y\n")
	l, err := open(dir)
	if err != nil || l.domains["x"] == nil || l.domains["y"] == nil || l.Len() != 0 || l.rules.List() != nil {
		t.Error(l, err)
	}
	write("c.yaml", "domain: y\n")
	_, err = open(dir)
	fails(t, err, "c.yaml:1:9: ", `domain "y"`, "a.yaml has it already")
	// Load refuses a socket as it refuses a pipe. A pipe would block the start of the process.
	socket, err := net.Listen("unix", filepath.Join(dir, "d.yaml"))
	testkit.Must(t, err)
	_, err = open(dir)
	fails(t, err, "d.yaml is not a regular file")
	testkit.Must(t, socket.Close())
	_, err = open(filepath.Join(dir, "absent"))
	fails(t, err, "absent")
}

func TestOptions(t *testing.T) {
	l, err := open("testdata/working", Options{Algorithm: "fixed-window"})
	testkit.Must(t, err)
	for _, r := range l.rules.List() {
		if r.Algorithm != "fixed-window" {
			t.Errorf("%s: %s", r.Name, r.Algorithm)
		}
	}
	star := testkit.WriteFile(t, "f.yaml",
		"domain: d\ndescriptors: [{key: cl*, rate_limit: {unit: day, requests_per_unit: 5}}]\n")
	for _, c := range []struct {
		limits string
		Options
		want string
	}{
		{"testdata/working", Options{Algorithm: "leaky"}, `"leaky": want sliding-log`},
		{"testdata/working", Options{Tag: strings.Repeat("t", 65)}, `at most 64`},
		// Only the beginning of the tag's value is certainly in a key.
		{star, Options{Tag: "client"}, `f.yaml:2:21: key "cl*" takes the entry "client" that --rls-tag names`},
		{"testdata/working", Options{Tag: "path"},
			`paths.yaml:17:12: value "/api*v1": the entry that --rls-tag names`},
	} {
		_, err := open(c.limits, c.Options)
		fails(t, err, c.want)
	}
}

// A file without descriptors has no rules, and text of any length is a key, a value or a domain.
func TestWhatIsTaken(t *testing.T) {
	for _, text := range []string{"domain: d\n", "domain: d\ndescriptors: []\n", "domain: d\ndescriptors:\n"} {
		if l := load(t, testkit.WriteFile(t, "limits.yaml", text)); len(l.rules.List()) != 0 {
			t.Errorf("%s: %+v", text, l.rules.List())
		}
	}
	url := strings.Repeat("https://example.org/a/long/path?", 20)
	for _, c := range [][3]string{{"d", "k", url}, {"d", url, "x"}, {url, "k", "x"}} {
		l := load(t, testkit.WriteFile(t, "limits.yaml", fmt.Sprintf("domain: %q\ndescriptors: [{key: %q, value: %q, "+
			"rate_limit: {unit: day, requests_per_unit: 5}}]\n", c[0], c[1], c[2])))
		got, ok := l.Find(c[0], entriesOf(c[1], c[2]))
		if !ok || got.PerUnit != 5 || len(got.Key) > 200 || l.rules.Match(got.Key) != got.Plan {
			t.Errorf("%.40q: %+v, %v", c, got, ok)
		}
	}
}
