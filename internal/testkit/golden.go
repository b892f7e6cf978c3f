package testkit

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Update says that golden files are to be written: go test ./the/package -update.
var Update = flag.Bool("update", false, "write the golden files")

// Golden compares text with the file at path, or with -update writes it there.
func Golden(t testing.TB, path, got string) {
	t.Helper()
	if *Update {
		write(t, path, got)
		return
	}
	want, err := os.ReadFile(path)
	Must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it):\n%s", path, diff)
	}
}

// write writes a golden file, but not what a test got that has failed: it may lack a part.
func write(t testing.TB, path, text string) {
	t.Helper()
	if !t.Failed() {
		Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
}

// Section compares text with the part of a page between <!-- name --> and <!-- /name -->, or with -update writes it
// there.
func Section(t testing.TB, page, name, got string) {
	t.Helper()
	text, err := os.ReadFile(page)
	Must(t, err)
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->\n"
	before, rest, ok := strings.Cut(string(text), begin)
	want, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no %q and %q", page, begin, end)
	}
	if *Update {
		write(t, page, before+begin+got+end+after)
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it):\n%s", page, diff)
	}
}

// Stories compares each testdata/*.txt with the output of a test. A story is the text above a line of dashes, and the
// steps below it; tell returns the steps again, with the answers that it got. Stories run in parallel.
func Stories(t *testing.T, tell func(t *testing.T, path, above string, steps []string) []string) {
	t.Helper()
	StoriesIn(t, "testdata", tell)
}

// StoriesIn is Stories for those in another directory.
func StoriesIn(t *testing.T, dir string, tell func(t *testing.T, path, above string, steps []string) []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	Must(t, err)
	if len(files) == 0 {
		t.Fatal("no story in ", dir)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(path)
			Must(t, err)
			above, steps, ok := strings.Cut(string(text), "\n---\n")
			if !ok {
				t.Fatal("the story has no line of dashes")
			}
			out := tell(t, path, above, strings.Split(strings.TrimSuffix(steps, "\n"), "\n"))
			Golden(t, path, above+"\n---\n"+strings.Join(out, "\n")+"\n")
		})
	}
}

// Steps runs the steps of a story and returns them with their answers. Lines that begin with mark are old answers,
// which it leaves out. Empty lines and lines that begin with # are no steps, and stay.
func Steps(lines []string, mark string, step func(line string) (answers []string)) (out []string) {
	for _, line := range lines {
		if strings.HasPrefix(line, mark) {
			continue
		}
		out = append(out, line)
		if line == "" || line[0] == '#' {
			continue
		}
		for _, answer := range step(line) {
			out = append(out, mark+answer)
		}
	}
	return out
}

var repeated = regexp.MustCompile(`\{\{(.+?) (\d+)\}\}`)

// Repeat returns a text of a story in which {{a 3}} is aaa.
func Repeat(text string) string {
	return repeated.ReplaceAllStringFunc(text, func(part string) string {
		m := repeated.FindStringSubmatch(part)
		n, _ := strconv.Atoi(m[2])
		return strings.Repeat(m[1], n)
	})
}
