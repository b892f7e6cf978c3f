package streamcounter_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	sourceFile   = regexp.MustCompile("`([a-z]+/[a-z/*_-]+\\.(?:go|lua))`")
	notInAnchors = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// Each link between pages leads to a file, and to a heading in it. Files of code that a page names with their folders
// are there.
func TestLinksBetweenPages(t *testing.T) {
	list, err := exec.Command("git", "ls-files", "*.md").Output()
	if err != nil {
		t.Skip("not a checkout of git")
	}
	for _, page := range strings.Fields(string(list)) {
		text, err := os.ReadFile(page)
		testkit.Must(t, err)
		for _, m := range markdownLink.FindAllStringSubmatch(string(text), -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
			} else if anchor != "" && strings.HasSuffix(target, ".md") && !hasHeading(t, target, anchor) {
				t.Errorf("%s links to %s: no such heading", page, m[1])
			}
		}
		for _, m := range sourceFile.FindAllStringSubmatch(string(text), -1) {
			if list, err := filepath.Glob(m[1]); err != nil || len(list) == 0 {
				t.Errorf("%s names %s, which is not there", page, m[1])
			}
		}
	}
}

// hasHeading finds a heading by the anchor that GitHub makes of it.
func hasHeading(t *testing.T, page, anchor string) bool {
	t.Helper()
	text, err := os.ReadFile(page)
	testkit.Must(t, err)
	for line := range strings.Lines(string(text)) {
		title := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		made := strings.ReplaceAll(notInAnchors.ReplaceAllString(title, ""), " ", "-")
		if strings.HasPrefix(line, "#") && made == anchor {
			return true
		}
	}
	return false
}
