package bench

import (
	"slices"
	"testing"
)

func TestChoosersAreDeterministicAndCoverTheKeys(t *testing.T) {
	for _, skew := range []string{Uniform, Zipf} {
		t.Run(skew, func(t *testing.T) {
			c := Config{Keys: 50, Skew: skew}.withDefaults()
			other := c
			other.Seed = 2
			picks := newChooser(&c).draw(50_000)
			if !slices.Equal(picks, newChooser(&c).draw(50_000)) {
				t.Error("the same seed chose others")
			}
			if slices.Equal(picks, newChooser(&other).draw(50_000)) {
				t.Error("another seed chose the same")
			}
			seen := make([]int, c.Keys)
			for _, k := range picks {
				seen[k]++
			}
			for k, n := range seen {
				if n == 0 {
					t.Errorf("the key of rank %d was never chosen", k)
				}
			}
			// Zipf at 1.1 gives the first of 50 keys about 26 %, uniform 2 %.
			share := float64(seen[0]) / float64(len(picks))
			if hot := share > 0.2 && share < 0.35; hot != (skew == Zipf) {
				t.Errorf("the first key was chosen in %.1f %%", 100*share)
			}
		})
	}
}
