package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/internal/wording"
)

const wordedRules = `rules:
  - name: api
    match: "user:*"
    windows: [{limit: 100, per: 1m}, {limit: 2000, per: 1h}]
    alerts: [80%, 95%]
  - name: strict
    match: "*:1*"
    windows: [{limit: 50, per: 1m}]
    shadow: true
  - name: gold
    windows: [{limit: 5000, per: 1h}]
`

// The output shows which keys of a list match which rule. Bad lines are reported, and the other lines are still read.
func TestRulesCheckKeys(t *testing.T) {
	file := testkit.WriteFile(t, "rules.yml", wordedRules)
	long := strings.Repeat("x", 3<<20)
	list := "user:1\r\nuser:2\n\nuser:1\nip:1\nbad\tkey\n" + long + "\nother\nuser:3\nuser:4\nuser:\xff"
	keys := testkit.WriteFile(t, "keys.txt", list)
	for _, args := range [][]string{{"--keys", keys}, {"--keys", "-"}} {
		code, out, errs := runProgram(t, list, append([]string{"rules", "check", file}, args...)...)
		for _, want := range []string{"api (user:*): 100 in any minute", "\napi ",
			"4     user:1, user:2, user:3, ...\n",
			"strict (shadow)  2     user:1, ip:1\n", "gold             0", "no rule          2     ip:1, other\n"} {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("%v: exit code %d, no %q in\n%s", args, code, want, out)
			}
		}
		for _, want := range []string{":6: ", ":7: ", "longer than 1048576 bytes", ":11: "} {
			if strings.Count(errs, "\n") != 3 || !strings.Contains(errs, want) {
				t.Errorf("%v: no %q in\n%s", args, want, errs)
			}
		}
	}
	code, out, _ := runProgram(t, "", "rules", "check", file, "--json", "--keys", keys)
	var got keysByRule
	testkit.Must(t, json.Unmarshal([]byte(out), &got))
	if code != 0 || len(got.Rules) != 3 || len(got.BadLines) != 3 || got.BadLines[2].Line != 11 ||
		!slices.Equal(got.Rules[0].Keys, []string{"user:1", "user:2", "user:3", "user:4"}) ||
		!slices.Equal(got.Rules[1].Keys, []string{"user:1", "ip:1"}) || !got.Rules[1].Shadow ||
		!slices.Equal(got.NoRule, []string{"ip:1", "other"}) {
		t.Errorf("exit code %d, %s", code, out)
	}
	missing := filepath.Join(t.TempDir(), "no.txt")
	expect(t, "rules check "+file+" --keys "+missing, 1, "--keys: open")
}

// The exit code is 0 if the rules are the same, 1 if they differ, 2 after an error.
func TestRulesDiff(t *testing.T) {
	old := testkit.WriteFile(t, "old.yml", wordedRules)
	same := testkit.WriteFile(t, "same.yml", "# a comment\n"+strings.Replace(wordedRules, "per: 1h", "per: 60m", 1))
	now := testkit.WriteFile(t, "new.yml", strings.NewReplacer("limit: 2000", "limit: 3000", "gold", "silver").
		Replace(wordedRules))
	bad := testkit.WriteFile(t, "bad.yml", strings.Replace(wordedRules, "limit: 2000", "limit: -1", 1))
	diff := "rules diff "
	expect(t, diff+old+" "+same, 0, "the rules are the same\n")
	expect(t, diff+old+" "+same+" --json", 0, "[]\n")
	expect(t, diff+old+" "+now, 1, "api: 3,000 in any hour, was 2,000; ", "silver: renamed, was gold; ")
	expect(t, diff+old+" "+bad, 2, "bad.yml:4:")
	expect(t, diff+bad+" "+old, 2, "bad.yml:4:")
	expect(t, diff+old, 2, "missing NEW. Usage: streamcounter rules diff OLD NEW")
	expect(t, diff+old+" "+old+"-not", 2, "-not")
	out := expect(t, diff+old+" "+now+" --json", 1)
	var changes []wording.Change
	testkit.Must(t, json.Unmarshal([]byte(out), &changes))
	if len(changes) != 2 || changes[0].Kind != wording.Changed || changes[1].Kind != wording.Renamed ||
		changes[1].Rule != "silver" {
		t.Errorf("%s", out)
	}
}

// docs/rules.md shows the output of the commands for the files that it shows.
func TestRulesAreDocumentedInWords(t *testing.T) {
	text, err := os.ReadFile("../../docs/rules.md")
	testkit.Must(t, err)
	_, example, _ := strings.Cut(string(text), "```yaml\n")
	example, _, ok := strings.Cut(example, "```")
	file := testkit.WriteFile(t, "rules.yml", example)
	file2 := testkit.WriteFile(t, "rules.new.yml", strings.NewReplacer("limit: 2000", "limit: 5000",
		"    alerts:", "    algorithm: fixed-window\n    on_deny: charge\n    alerts:").Replace(example))
	_, words, _ := runProgram(t, "", "rules", "check", file)
	_, differs, _ := runProgram(t, "", "rules", "diff", file, file2)
	if !ok || words == "" || differs == "" {
		t.Fatalf("the commands print %q and %q", words, differs)
	}
	for line := range strings.Lines(words + differs) {
		if !shows(string(text), strings.TrimSpace(line)) {
			t.Errorf("docs/rules.md has not\n%s", line)
		}
	}
}

// shows reports whether a page has a line. The page may cut the line with " …".
func shows(page, line string) bool {
	for l := range strings.Lines(page) {
		start, cut := strings.CutSuffix(strings.TrimSpace(l), " …")
		if start == line || cut && len(start) > 20 && strings.HasPrefix(line, start) {
			return true
		}
	}
	return false
}
