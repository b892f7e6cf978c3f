package measure_test

import (
	"math/rand/v2"
	"testing"

	"github.com/streamcounter/streamcounter/internal/measure"
)

func TestChooser(t *testing.T) {
	for _, x := range []struct {
		keys     measure.Keys
		min, max int // uses of key 0, of 10,000
	}{
		{measure.Keys{N: 10}, 800, 1200},
		{measure.Keys{N: 10, S: 1.5}, 4500, 6500},
		{measure.Keys{N: 1, S: 2}, 10_000, 10_000},
	} {
		choose, uses := x.keys.Chooser(rand.New(rand.NewPCG(1, 2))), make([]int, x.keys.N)
		for range 10_000 {
			uses[choose()]++
		}
		if uses[0] < x.min || uses[0] > x.max {
			t.Errorf("%+v: uses %v", x.keys, uses)
		}
	}
}
