package main

import (
	"os"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Bad lines of a list of keys are reported, and the other lines are still read.
func TestRulesCheckKeys(t *testing.T) {
	list := "user:1\r\nbad\tkey\n" + strings.Repeat("x", 3<<20) + "\nother\nuser:\xff"
	code, out, errs := runProgram(t, list, "rules", "check", devRules(t), "--keys", "-")
	if code != 0 || !strings.Contains(out, "  1     user:1\n") || !strings.Contains(out, "  1     other\n") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	for _, want := range []string{":2: ", ":3: the line is longer than 1048576 bytes", ":5: "} {
		if strings.Count(errs, "\n") != 3 || !strings.Contains(errs, want) {
			t.Errorf("no %q in\n%s", want, errs)
		}
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
