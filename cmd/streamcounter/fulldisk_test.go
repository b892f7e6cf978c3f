package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

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
