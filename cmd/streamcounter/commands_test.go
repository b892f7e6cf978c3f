package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// storyFile is the line above a file of a story.
var storyFile = regexp.MustCompile(`(?m)^-- (\S+) --\n`)

// A story has command lines and what they say: "$ COMMAND", its exit code, and then either each line of the output, as
// "> LINE", or texts in the output, as "< TEXT". A word that is the name of a file of the story means that file, and
// after "<" it is the input. {{x 3}} is xxx. If one is dev.yml, the commands go to a dev with these rules, and append
// to its Redis.
func TestCommands(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, _, above string, steps []string) (out []string) {
		dir, server, redis, words, files := t.TempDir()+"/", "", "", []string{}, map[string]string{}
		names := storyFile.FindAllStringSubmatch(above, -1)
		for i, text := range storyFile.Split(testkit.Repeat(above), -1)[1:] {
			name := names[i][1]
			files[name] = text
			testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			words = append(words, " "+name+" ", " "+dir+name+" ")
			if name == "dev.yml" {
				d := startDev(t, "--check-timeout", "5s", "--rules", dir+name)
				server, redis = " --http "+d.at, " --redis "+d.redis
			}
		}
		for len(steps) > 0 {
			end := 1
			for end < len(steps) && !strings.HasPrefix(steps[end], "$ ") {
				end++
			}
			command, input, _ := strings.Cut(testkit.Repeat(steps[0]), " < ")
			to := server
			if strings.HasPrefix(command, "$ append ") {
				to = redis
			}
			line := strings.NewReplacer(words...).Replace(strings.ReplaceAll(command[1:]+to+" ", " ", "  "))
			code, said, errs := runProgram(t, files[input], strings.Fields(line)...)
			said = strings.ReplaceAll(said+errs, dir, "")
			out = append(out, steps[0])
			if want := steps[1:end]; saysAll(want, code, said) {
				out = append(out, want...)
			} else {
				out = append(out, fmt.Sprint(code))
				for one := range strings.Lines(said) {
					out = append(out, "> "+strings.TrimSuffix(one, "\n"))
				}
			}
			steps = steps[end:]
		}
		return out
	})
}

// saysAll reports whether an exit code is wanted, and an output has all texts that are wanted in it.
func saysAll(want []string, code int, output string) bool {
	for _, w := range want[min(1, len(want)):] {
		if text, ok := strings.CutPrefix(w, "< "); !ok || !strings.Contains(output, text) {
			return false
		}
	}
	return len(want) > 0 && want[0] == fmt.Sprint(code)
}

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

// fullDisk is a standard output that takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// A command whose output is lost fails, also if its exit code 1 is an answer.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	server := testkit.Answering(t, 200, `{"key":"user:1","allowed":false,"windows":[],"rules":[]}`)
	rules, at := devRules(t), " --http "+server.URL
	for line, want := range map[string]int{
		"version": 1, "version --json": 1, "help": 1, "rules check " + rules: 1, "rules check --json " + rules: 1,
		"check user:1" + at: 2, "check user:1 --json" + at: 2, "keys show user:1" + at: 1, "keys top --json" + at: 1,
	} {
		var errs strings.Builder
		code := runOn(t.Context(), strings.NewReader(""), fullDisk{}, &errs, strings.Fields(line)...)
		if code != want ||
			!strings.Contains(errs.String(), "no space left on device") {
			t.Errorf("%s: exit code %d, want %d\n%s", line, code, want, errs.String())
		}
	}
}

// The use of an in-flight window is not shown as a rate.
func TestUseOfAnInFlightWindow(t *testing.T) {
	tr := api.Transition{Rule: "job", Key: "job:a", State: api.StateThrottled, Level: api.LevelThrottled, Limit: 3,
		Used: 3, WindowMs: 60_000, InFlight: true}
	var windows, watched strings.Builder
	printWindows(&windows, []api.WindowState{{Limit: 3, Used: 3, EmptyMs: 30_000, NextFreeMs: 20_000,
		WindowKind: api.WindowKind{InFlight: true}}})
	printTransition(&watched, tr)
	for name, text := range map[string]string{
		"check": windows.String(), "watch": watched.String(),
		"keys history": entryText(api.HistoryEntry{Transition: &tr}),
		"keys throttled": throttledText(api.Throttled{Rule: "job", Key: "job:a", Limit: 3, Used: 3, WindowMs: 60_000,
			InFlight: true}),
	} {
		if !strings.Contains(text, "3 of 3 in flight") || strings.Contains(text, "per ") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// A key that reaches its limit is throttled, and its alert of 100 % says the same.
func TestWatchPrintsOneLineForACrossing(t *testing.T) {
	for _, c := range []struct {
		state api.State
		level int
		lines int
	}{
		{api.StateThrottled, api.LevelThrottled, 1}, {api.StateRaised, api.LevelThrottled, 0},
		{api.StateReleased, api.LevelThrottled, 1}, {api.StateCleared, api.LevelThrottled, 0},
		{api.StateRaised, 95, 1}, {api.StateCleared, 95, 1},
	} {
		var out strings.Builder
		printTransition(&out, api.Transition{Rule: "api", Key: "user:1", State: c.state, Level: c.level, Limit: 10,
			Used: 10, WindowMs: 60_000})
		if n := strings.Count(out.String(), "\n"); n != c.lines {
			t.Errorf("%s at %d %%: %d lines, want %d", c.state, c.level, n, c.lines)
		}
	}
}
