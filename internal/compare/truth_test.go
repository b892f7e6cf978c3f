package compare

import (
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/windows"
)

// truth removes only entries that are never needed again, and adds up what was admitted in one millisecond.
func TestTruthForgets(t *testing.T) {
	truth := newTruth([]windows.Window{window(10, time.Second)})
	for ms := range int64(100_000) {
		for range 2 {
			if r := (Request{ms, "a", 1, nil}); truth.excess(r) <= 0 {
				truth.add(r)
			}
		}
	}
	if n := len(truth.admitted["a"]); n != 5 {
		t.Errorf("it keeps %d admissions, want the 5 of two units within the window", n)
	}
}

func TestGCRA(t *testing.T) {
	g := newGCRA([]windows.Window{window(3, 10*time.Second)})
	for _, step := range []struct {
		r    Request
		want bool
	}{
		{Request{0, "a", 2, nil}, true},
		{Request{0, "a", 1, nil}, true}, // the whole limit at once
		{Request{0, "a", 1, nil}, false},
		{Request{0, "b", 3, nil}, true},
		{Request{3333, "a", 1, nil}, false}, // a unit becomes free every 3333 ms and a third
		{Request{3334, "a", 1, nil}, true},
		{Request{6666, "a", 1, nil}, false}, // rounding has freed nothing
		{Request{6667, "a", 1, nil}, true},
		{Request{10_000, "a", 1, nil}, true},
		{Request{19_999, "a", 3, nil}, false},
		{Request{20_000, "a", 3, nil}, true}, // and the whole limit again
	} {
		if got := g.admit(step.r); got != step.want {
			t.Errorf("%+v: admitted %t, want %t", step.r, got, step.want)
		}
	}
}
