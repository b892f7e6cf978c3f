package config

import (
	"fmt"
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
	write("c.yaml", "# "+strings.Repeat("x", reload.MaxBytes))
	fails("c.yaml is larger than 1048576 bytes")
	write("c.yaml", "domain: z\n")
	for i := range reload.MaxTotal/reload.MaxBytes + 1 {
		write(fmt.Sprintf("c%02d.yaml", i), "# "+strings.Repeat("x", reload.MaxBytes-2))
	}
	fails("yaml: more than 16 MB")
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

// A configuration that envoyproxy/ratelimit reads has the same meaning here.
func TestWhatIsTaken(t *testing.T) {
	const day = "rate_limit: {unit: day, requests_per_unit: 5}"
	url := strings.Repeat("https://example.org/a/long/path?", 20)
	for what, text := range map[string]string{
		"a domain only":    "domain: d\n",
		"no descriptor":    "domain: d\ndescriptors: []\n",
		"descriptors null": "domain: d\ndescriptors:\n",
		"unlimited only":   "domain: d\ndescriptors: [{key: k, rate_limit: {unlimited: true}}]\n",
		"a limit of 0":     "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 0}}]\n",
		"a merged limit":   "domain: d\ndescriptors: [&a {key: k, " + day + "}, {<<: *a, key: j}]\n",
		"merged fields": "domain: d\ndescriptors: [{key: k, rate_limit: &l {unit: day, requests_per_unit: " +
			"9}}, {key: j, rate_limit: {<<: *l, requests_per_unit: 5}}]\n",
		"shadow_mode: yes": "domain: d\ndescriptors: [{key: k, shadow_mode: yes, " + day + "}]\n",
		"shadow_mode: ON":  "domain: d\ndescriptors: [{key: k, shadow_mode: ON, " + day + "}]\n",
		"quota_mode: y":    "domain: d\ndescriptors: [{key: k, quota_mode: y, " + day + "}]\n",
		"shadow_mode: off": "domain: d\ndescriptors: [{key: k, shadow_mode: off, " + day + "}]\n",
		"a long value":     "domain: d\ndescriptors: [{key: k, value: '" + url + "', " + day + "}]\n",
		"a long key":       "domain: d\ndescriptors: [{key: '" + url + "', " + day + "}]\n",
		"a long domain":    "domain: '" + url + "'\ndescriptors: [{key: k, " + day + "}]\n",
	} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "limits.yaml")
			writeFile(t, path, text)
			s, err := NewSource(SourceConfig{Limits: path})
			testkit.Must(t, err)
			l := s.Limits()
			switch what {
			case "a merged limit", "merged fields":
				if got, ok := l.Find("d", descriptorOf("j=x")); !ok || got.PerUnit != 5 {
					t.Errorf("%+v, %v", got, ok)
				}
			case "shadow_mode: yes", "shadow_mode: ON", "shadow_mode: off":
				if got, ok := l.Find("d", descriptorOf("k=x")); !ok || got.Shadow == strings.HasSuffix(what, "off") ||
					(got.Plan.Live == nil) != got.Shadow {
					t.Errorf("%+v, %v", got, ok)
				}
			case "quota_mode: y":
				if got, ok := l.Find("d", descriptorOf("k=x")); !ok || !got.Quota {
					t.Errorf("%+v, %v", got, ok)
				}
			case "a long value", "a long key", "a long domain":
				domain, key, value := "d", "k", "x"
				switch what {
				case "a long value":
					value = url
				case "a long key":
					key = url
				default:
					domain = url
				}
				got, ok := l.Find(domain, entriesOf(key, value))
				if !ok || s.Rules().Match(got.Key) != got.Plan || len(got.Key) > 200 {
					t.Errorf("%+v, %v", got, ok)
				}
				if _, ok := l.Find(domain, entriesOf(key+"x", value)); ok {
					t.Error("another key has the limit")
				}
			default:
				if len(s.Rules().List()) != 0 || s.Rules().Match("d/k=x") != nil {
					t.Errorf("%+v", s.Rules().List())
				}
			}
		})
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
