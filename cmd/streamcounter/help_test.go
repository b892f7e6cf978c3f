package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Help of a process shows about ten flags first, and each flag once.
func TestHelpInSections(t *testing.T) {
	for name, cmd := range map[string]*cobra.Command{"dev": newDev(), "serve": newServe(), "work": newWork(),
		"ratelimit": newRatelimit()} {
		_, help, _ := runProgram(t, "", name, "--help")
		common, rest, _ := strings.Cut(help[strings.Index(help, "Common Flags:"):], "\n\n")
		if n := strings.Count(common, " --"); n < 6 || n > 13 {
			t.Errorf("%s has %d common flags:\n%s", name, n, common)
		}
		if !strings.HasPrefix(rest, "TLS and Access Flags:") || !strings.Contains(rest, "\n\nTuning Flags:") {
			t.Errorf("%s: after the common flags comes\n%s", name, rest)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if n := strings.Count(help, "\n      --"+f.Name+" "); n != 1 {
				t.Errorf("%s shows --%s %d times", name, f.Name, n)
			}
		})
	}
	if _, help, _ := runProgram(t, "", "check", "--help"); !strings.Contains(help, "\nFlags:\n") {
		t.Errorf("help of check has no flags:\n%s", help)
	}
}

// There is a man page for each command, and its lists are still lists.
func TestManPages(t *testing.T) {
	dir := t.TempDir()
	if code, _, errs := runProgram(t, "", "man", dir); code != 0 {
		t.Fatal(errs)
	}
	files, err := os.ReadDir(dir)
	testkit.Must(t, err)
	if len(files) < 30 {
		t.Errorf("there are %d pages", len(files))
	}
	page, err := os.ReadFile(dir + "/streamcounter-append.1")
	testkit.Must(t, err)
	for _, part := range []string{"append - Append events", "\n  lines    KEY [COUNT]", "\\fB--redis\\fP"} {
		if !strings.Contains(strings.ReplaceAll(string(page), `\-`, "-"), part) {
			t.Errorf("the page of append has no %q:\n%s", part, page)
		}
	}
}
