package counters

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestFirstN(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.IntRange(0, 30), 0, 60).Draw(t, "values")
		first := firstN[int]{n: rapid.IntRange(0, 10).Draw(t, "n"), compare: cmp.Compare[int]}
		for _, v := range values {
			first.add(v)
		}
		slices.Sort(values)
		want := slices.Compact(values)
		want = want[:min(len(want), first.n)]
		if got := first.sorted(); !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}
