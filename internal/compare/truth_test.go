package compare

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

func TestTruthByHand(t *testing.T) {
	ws := []windows.Window{window(5, 10*time.Second), window(7, 30*time.Second)}
	truth := newTruth(ws)
	for i, step := range []struct {
		r      Request
		excess int64 // computed by hand
		add    bool
	}{
		{Request{100_000, "a", 5}, 0, true},   // 5 of 5, 5 of 7
		{Request{100_000, "a", 1}, 1, false},  // 6 of 5
		{Request{100_000, "b", 1}, -4, false}, // another key; the short window has least room
		{Request{109_999, "a", 1}, 1, false},  // 100_000 > 109_999-10_000
		{Request{110_000, "a", 1}, -1, true},  // it has left the short one, and the long one has 6 of 7
		{Request{110_000, "a", 4}, 3, false},  // 5 of 5, but 10 of 7
		{Request{119_999, "a", 5}, 4, false},  // 6 of 5, 11 of 7
		{Request{129_999, "a", 2}, 1, false},  // 8 of 7
		{Request{130_000, "a", 5}, 0, true},   // the first has left, 5 of 5 and 6 of 7
		{Request{139_999, "a", 3}, 3, false},  // 8 of 5
		{Request{140_000, "a", 2}, 0, true},   // 2 of 5; that of 110_000 has left: 7 of 7
		{Request{140_000, "a", 1}, 1, false},
	} {
		if got := truth.excess(step.r); got != step.excess {
			t.Errorf("%d: %+v: %d over the limit, want %d", i, step.r, got, step.excess)
		}
		if step.add {
			truth.add(step.r)
		}
	}
}

// What the truth drops is never needed again, and nothing else is dropped.
func TestTruthForgets(t *testing.T) {
	truth := newTruth([]windows.Window{window(10, time.Second)})
	for ms := range int64(100_000) {
		r := Request{ms, "a", 1}
		if truth.excess(r) <= 0 {
			truth.add(r)
		}
	}
	if n := len(truth.admitted["a"]); n != 10 {
		t.Errorf("it keeps %d admissions, want the 10 within the window", n)
	}
}

// Two recounts that share nothing agree.
func TestTruthAgainstOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := []windows.Window{window(rapid.Int64Range(1, 20).Draw(t, "limit"), 10*time.Millisecond),
			window(rapid.Int64Range(1, 40).Draw(t, "limit 2"), 35*time.Millisecond)}
		limits := []streamtest.OracleWindow{{Ms: 10, Limit: ws[0].Limit}, {Ms: 35, Limit: ws[1].Limit}}
		truth, oracle := newTruth(ws), streamtest.Oracle{}
		now := int64(start)
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			now += rapid.Int64Range(0, 12).Draw(t, "later")
			r := Request{now, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"),
				rapid.Int64Range(1, 6).Draw(t, "cost")}
			have, want := truth.excess(r) <= 0, oracle.Admits(r.Key, r.Ms, r.Cost, limits)
			if have != want {
				t.Fatalf("%+v: room %t, want %t", r, have, want)
			}
			// Also what an algorithm should not have admitted is part of its past.
			if rapid.Bool().Draw(t, "admitted") {
				truth.add(r)
				oracle.Add(r.Key, r.Ms, r.Cost)
			}
		}
	})
}
