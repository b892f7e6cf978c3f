package partners

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// docs/works-with.md names each program that is built, with its version.
func TestWorksWith(t *testing.T) {
	text, err := os.ReadFile("../../docs/works-with.md")
	testkit.Must(t, err)
	name := strings.NewReplacer("-", "[- ]")
	for _, p := range Programs {
		row := `(?im)^\|[^|]*` + name.Replace(p.Name) + `\b[^|]*\| ` + regexp.QuoteMeta(p.Version) + ` \|`
		if !regexp.MustCompile(row).Match(text) {
			t.Errorf("docs/works-with.md has no row of %s %s", p.Name, p.Version)
		}
	}
	if _, version, _ := strings.Cut(Operator, "@"); !strings.Contains(string(text), "| "+version+" |") {
		t.Errorf("docs/works-with.md has no row of %s", Operator)
	}
}
