package testkit

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var metricRow = regexp.MustCompile("(?m)^\\| `(streamcounter_[a-z_]+)` \\| [a-z]+ \\|([^|]*)\\|")

// DocumentedMetrics returns the metrics in the tables of a page: name → labels, separated by commas.
func DocumentedMetrics(t testing.TB, page string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(page)
	Must(t, err)
	out := map[string]string{}
	for _, m := range metricRow.FindAllStringSubmatch(string(text), -1) {
		out[m[1]] = strings.NewReplacer("`", "", " ", "").Replace(m[2])
	}
	if len(out) == 0 {
		t.Fatalf("%s has no metrics", page)
	}
	return out
}
