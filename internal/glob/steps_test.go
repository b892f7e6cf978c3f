package glob_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/internal/glob"
)

// The bound on steps must not change a result: each of these texts fits, and takes many steps.
func TestMaxStepsHidesNoFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pattern, key strings.Builder
		for range rapid.IntRange(1, 12).Draw(t, "pieces") {
			piece := rapid.SampledFrom([]string{"a", "aa", "ab", "a?", "??", "?b"}).Draw(t, "piece")
			gap := rapid.IntRange(0, 20).Draw(t, "gap")
			pattern.WriteString("*" + piece)
			key.WriteString(strings.Repeat("a", gap) + strings.ReplaceAll(piece, "?", "a"))
		}
		if rapid.Bool().Draw(t, "open") {
			pattern.WriteString("*")
			key.WriteString(rapid.StringOfN(rapid.SampledFrom([]rune("ab")), 0, 20, -1).Draw(t, "tail"))
		}
		if !glob.Split(pattern.String()).Fits(key.String()) {
			t.Fatalf("%s over %s: does not fit", pattern.String(), key.String())
		}
	})
}
