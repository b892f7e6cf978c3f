package wording_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/internal/wording"
	"github.com/streamcounter/streamcounter/windows"
)

// Every form of a rule in words: compare testdata/rules.txt with testdata/rules.yml.
func TestRuleInWords(t *testing.T) {
	rules, err := windows.Load(filepath.Join("testdata", "rules.yml"))
	testkit.Must(t, err)
	var b strings.Builder
	for _, r := range rules.List() {
		fmt.Fprintln(&b, wording.Rule(r))
	}
	testkit.Golden(t, filepath.Join("testdata", "rules.txt"), b.String())
}

// testdata/diff.txt has the differences between two files, and their effects: "- " the rules before, "+ " the rules
// now, and then what Diff says.
func TestDiffInWords(t *testing.T) {
	path := filepath.Join("testdata", "diff.txt")
	text, err := os.ReadFile(path)
	testkit.Must(t, err)
	var b strings.Builder
	var before *windows.Rules
	for line := range strings.Lines(string(text)) {
		switch line[0] {
		case '#', '\n':
			b.WriteString(line)
		case '-':
			b.WriteString(line)
			before = parse(t, line[1:])
		case '+':
			b.WriteString(line)
			now := parse(t, line[1:])
			changes := wording.Diff(before, now)
			if same := before.Fingerprint() == now.Fingerprint(); same != (len(changes) == 0) {
				t.Errorf("%s%d changes, and the same fingerprint: %t", line, len(changes), same)
			}
			if back := wording.Diff(now, before); len(back) == 0 && len(changes) > 0 {
				t.Errorf("%sno changes the other way", line)
			}
			for _, change := range changes {
				fmt.Fprintf(&b, "%s | %s\n", change.Kind, change)
			}
		}
	}
	testkit.Golden(t, path, b.String())
}

func parse(t *testing.T, list string) *windows.Rules {
	t.Helper()
	rules, err := windows.Parse("rules.yml", []byte("rules: ["+list+"]"))
	testkit.Must(t, err)
	return rules
}
