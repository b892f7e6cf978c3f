package compare

import (
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/windows"
)

func TestGCRA(t *testing.T) {
	g := newGCRA([]windows.Window{window(3, 10*time.Second)})
	for _, step := range []struct {
		r    Request
		want bool
	}{
		{Request{0, "a", 2}, true},
		{Request{0, "a", 1}, true}, // the whole limit at once
		{Request{0, "a", 1}, false},
		{Request{0, "b", 3}, true},
		{Request{3333, "a", 1}, false}, // a unit comes back each 3333 ms and a third
		{Request{3334, "a", 1}, true},
		{Request{6666, "a", 1}, false}, // nothing was gained by rounding
		{Request{6667, "a", 1}, true},
		{Request{10_000, "a", 1}, true},
		{Request{19_999, "a", 3}, false},
		{Request{20_000, "a", 3}, true}, // and full again
	} {
		if got := g.admit(step.r); got != step.want {
			t.Errorf("%+v: admitted %t, want %t", step.r, got, step.want)
		}
	}
}
