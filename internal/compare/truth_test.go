package compare

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/windows"
)

// truth removes only entries that are never needed again.
func TestTruthForgets(t *testing.T) {
	truth := newTruth([]windows.Window{window(10, time.Second)})
	for ms := range int64(100_000) {
		r := Request{ms, "a", 1, nil}
		if truth.excess(r) <= 0 {
			truth.add(r)
		}
	}
	if n := len(truth.admitted["a"]); n != 10 {
		t.Errorf("it keeps %d admissions, want the 10 within the window", n)
	}
}

// Two independent recounts agree.
func TestTruthAgainstARecount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := []windows.Window{window(rapid.Int64Range(1, 20).Draw(t, "limit"), 10*time.Millisecond),
			window(rapid.Int64Range(1, 40).Draw(t, "limit 2"), 35*time.Millisecond)}
		truth, past := newTruth(ws), []Request{}
		room := func(r Request) bool {
			return !slices.ContainsFunc(ws, func(w windows.Window) bool {
				used := r.Cost
				for _, p := range past {
					if p.Key == r.Key && p.Ms > r.Ms-w.Per.Milliseconds() {
						used += p.Cost
					}
				}
				return used > w.Limit
			})
		}
		now := int64(start)
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			now += rapid.Int64Range(0, 12).Draw(t, "later")
			r := Request{now, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"),
				rapid.Int64Range(1, 6).Draw(t, "cost"), nil}
			have, want := truth.excess(r) <= 0, room(r)
			if have != want {
				t.Fatalf("%+v: room %t, want %t", r, have, want)
			}
			// A request that an algorithm should not have admitted is part of its past too.
			if rapid.Bool().Draw(t, "admitted") {
				truth.add(r)
				past = append(past, r)
			}
		}
	})
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
