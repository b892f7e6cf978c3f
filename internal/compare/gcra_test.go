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

// A request that one window refuses costs nothing in the other, whichever is
// asked first.
func TestGCRAAllOrNothing(t *testing.T) {
	second, hour := window(1, time.Second), window(10, time.Hour)
	for _, ws := range [][]windows.Window{{second, hour}, {hour, second}} {
		g := newGCRA(ws)
		for ms := range int64(1000) {
			if got := g.admit(Request{ms, "a", 1}); got != (ms == 0) {
				t.Fatalf("%v at %d ms: admitted %t", ws, ms, got)
			}
		}
		for s := range int64(9) {
			if !g.admit(Request{1000 * (s + 1), "a", 1}) {
				t.Fatalf("%v at %d s: denied", ws, s+1)
			}
		}
	}
}
