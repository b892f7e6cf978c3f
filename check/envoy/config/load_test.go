package config

import (
	"cmp"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

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
	write := func(name, text string) {
		t.Helper()
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	fails := func(want ...string) {
		t.Helper()
		_, err := open(dir)
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%v, want %q", err, w)
			}
		}
	}
	write("c.txt", "nonsense")
	write(".hidden.yaml", "nonsense")
	fails(dir, "no *.yaml")
	write("b.yml", "domain: x\n")
	write("a.yaml", "domain: y\n")
	l, err := open(dir)
	if err != nil || l.domains["x"] == nil || l.domains["y"] == nil || l.Len() != 0 || l.rules.List() != nil {
		t.Error(l, err)
	}
	write("c.yaml", "domain: y\n")
	fails("c.yaml:1:9: ", `domain "y"`, "a.yaml has it already")
	// Load refuses a socket as it refuses a pipe. A pipe would block the start of the process.
	socket, err := net.Listen("unix", filepath.Join(dir, "d.yaml"))
	testkit.Must(t, err)
	fails("d.yaml is not a regular file")
	testkit.Must(t, socket.Close())
	if _, err := open(filepath.Join(dir, "absent")); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	l, err := open("testdata/working", Options{Algorithm: "fixed-window"})
	testkit.Must(t, err)
	for _, r := range l.rules.List() {
		if r.Algorithm != "fixed-window" {
			t.Errorf("%s: %s", r.Name, r.Algorithm)
		}
	}
	if _, err := open("testdata/working", Options{Algorithm: "leaky"}); err == nil ||
		!strings.Contains(err.Error(), `"leaky": want sliding-log`) {
		t.Error(err)
	}
	if _, err := open("testdata/working", Options{Tag: strings.Repeat("t", 65)}); err == nil ||
		!strings.Contains(err.Error(), `at most 64`) {
		t.Error(err)
	}
	// Only the beginning of the tag's value is certainly in a key.
	path := filepath.Join(t.TempDir(), "f.yaml")
	writeFile(t, path, "domain: d\ndescriptors: [{key: cl*, rate_limit: {unit: day, requests_per_unit: 5}}]\n")
	if _, err := open(path, Options{Tag: "client"}); err == nil ||
		!strings.Contains(err.Error(), `f.yaml:2:21: key "cl*" takes the entry "client" that --rls-tag names`) {
		t.Error(err)
	}
	if _, err := open("testdata/working", Options{Tag: "path"}); err == nil || !strings.Contains(err.Error(),
		`paths.yaml:17:12: value "/api*v1": the entry that --rls-tag names`) {
		t.Error(err)
	}
}

// The rules of the working configurations, as they are.
func TestRulesOfAConfiguration(t *testing.T) {
	l, err := open("testdata/working", Options{Tag: "client"})
	testkit.Must(t, err)
	var b strings.Builder
	for _, r := range l.rules.List() {
		b.WriteString(r.Match + "\t" + r.Name + "\n")
	}
	testkit.Golden(t, "testdata/rules.txt", b.String())
}

// A configuration that envoyproxy/ratelimit reads has the same meaning here. Each has the limit of 5 of the entry, or
// needs no rule.
func TestWhatIsTaken(t *testing.T) {
	const day = "rate_limit: {unit: day, requests_per_unit: 5}"
	url := strings.Repeat("https://example.org/a/long/path?", 20)
	one := func(fields string) string { return "domain: d\ndescriptors: [{key: k, " + fields + "}]\n" }
	for _, c := range []struct {
		text, domain, key, value string // no key: no rule is needed
		shadow, quota            bool
	}{
		{text: "domain: d\n"},
		{text: "domain: d\ndescriptors: []\n"},
		{text: "domain: d\ndescriptors:\n"},
		{text: one("rate_limit: {unlimited: true}")},
		{text: one("rate_limit: {unit: day, requests_per_unit: 0}")},
		{text: "domain: d\ndescriptors: [&a {key: k, " + day + "}, {<<: *a, key: j}]\n", domain: "d", key: "j"},
		{text: "domain: d\ndescriptors: [{key: k, rate_limit: &l {unit: day, requests_per_unit: 9}}, " +
			"{key: j, rate_limit: {<<: *l, requests_per_unit: 5}}]\n", domain: "d", key: "j"},
		{text: one("shadow_mode: yes, " + day), domain: "d", key: "k", shadow: true},
		{text: one("shadow_mode: ON, " + day), domain: "d", key: "k", shadow: true},
		{text: one("shadow_mode: off, " + day), domain: "d", key: "k"},
		{text: one("quota_mode: y, " + day), domain: "d", key: "k", quota: true},
		{text: one("value: '" + url + "', " + day), domain: "d", key: "k", value: url},
		{text: "domain: d\ndescriptors: [{key: '" + url + "', " + day + "}]\n", domain: "d", key: url},
		{text: "domain: '" + url + "'\ndescriptors: [{key: k, " + day + "}]\n", domain: url, key: "k"},
	} {
		s, err := NewSource(SourceConfig{Limits: testkit.WriteFile(t, "limits.yaml", c.text)})
		testkit.Must(t, err)
		if c.key == "" {
			if len(s.Rules().List()) != 0 || s.Rules().Match("d/k=x") != nil {
				t.Errorf("%s: %+v", c.text, s.Rules().List())
			}
			continue
		}
		got, ok := s.Limits().Find(c.domain, entriesOf(c.key, cmp.Or(c.value, "x")))
		if !ok || got.PerUnit != 5 || got.Shadow != c.shadow || got.Quota != c.quota || len(got.Key) > 200 ||
			s.Rules().Match(got.Key) != got.Plan || (got.Plan.Live == nil) != (c.shadow || c.quota) {
			t.Errorf("%.200s: %+v, %v", c.text, got, ok)
		}
		if _, ok := s.Limits().Find(c.domain, entriesOf(c.key+"x", cmp.Or(c.value, "x"))); ok {
			t.Errorf("%.200s: another key has the limit", c.text)
		}
	}
}

// With aliases, a few lines can mean a million descriptors.
func TestAliasesAreBounded(t *testing.T) {
	yaml := "domain: d\ndescriptors:\n"
	for depth := range 7 {
		yaml += "  - key: level" + strconv.Itoa(depth) + "\n    descriptors: &l" + strconv.Itoa(depth) + "\n"
		for i := range 10 {
			yaml += "      - {key: k" + strconv.Itoa(i)
			if depth > 0 {
				yaml += ", descriptors: *l" + strconv.Itoa(depth-1)
			}
			yaml += "}\n"
		}
	}
	_, err := parse([]reload.File{{Path: "f.yaml", Data: []byte(yaml)}}, Options{})
	if err == nil || !strings.Contains(err.Error(), "values, aliases counted at each use") {
		t.Error(err)
	}
}

// Beside `value: "*"` a key without value has nothing left to find.
func TestAStarTakesAll(t *testing.T) {
	l, err := parse([]reload.File{{Path: "f.yaml", Data: []byte(`domain: d
descriptors:
  - {key: k, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: k, value: "*", rate_limit: {unit: day, requests_per_unit: 2}}
`)}}, Options{})
	testkit.Must(t, err)
	if got, ok := l.Find("d", descriptorOf("k=x")); !ok || got.PerUnit != 2 || len(l.rules.List()) != 1 ||
		l.rules.List()[0] != got.Plan.Live {
		t.Errorf("%+v of %+v", got, l.rules.List())
	}
}
