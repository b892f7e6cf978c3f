package compare

import (
	"slices"
	"testing"
	"time"
)

func TestSeries(t *testing.T) {
	requests := []Request{{100, "a", 2}, {100, "b", 9}, {104, "a", 1}, {105, "a", 4}, {110, "a", 3}}
	verdicts := []bool{true, true, true, false, true}
	if got, want := admittedPer(requests, verdicts, "a", 100, 110, 5), []int64{3, 0, 3, 0}; !slices.Equal(got, want) {
		t.Errorf("admitted %v, want %v", got, want)
	}
	// ms:                                                     98 99 …        104               110
	//              114         120
	want := []int64{0, 0, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3, 0}
	if got := trailing(requests, verdicts, "a", 10, 98, 120, 1); !slices.Equal(got, want) {
		t.Errorf("held %v,\nwant %v", got, want)
	}
	// A step shows the most that was held in it.
	if got, want := trailing(requests, verdicts, "a", 10, 98, 120, 8), []int64{3, 4, 3}; !slices.Equal(got, want) {
		t.Errorf("held %v, want %v", got, want)
	}
}

// What is plotted is what the truth counts.
func TestTrailingIsTheTruth(t *testing.T) {
	w := window(20, 700*time.Millisecond)
	trace := Poisson{Rate: 40, Requests: 300, Keys: 2, MaxCost: 3, Seed: 5}.Trace()
	truth, verdicts := newTruth(nil), make([]bool, len(trace.Requests))
	truth.windows, truth.longest = append(truth.windows, w), 700
	first, last := trace.Requests[0].Ms, trace.Requests[len(trace.Requests)-1].Ms
	held := map[int64]int64{}
	for i, r := range trace.Requests {
		if verdicts[i] = i%3 > 0; verdicts[i] {
			truth.add(r)
		}
		held[r.Ms] = truth.excess(Request{r.Ms, "user:1", 0}) + w.Limit
	}
	got := trailing(trace.Requests, verdicts, "user:1", 700, first-1, last+700, 1)
	for ms, want := range held {
		if got[ms-first+1] != want {
			t.Errorf("at %d: %d, want %d", ms, got[ms-first+1], want)
		}
	}
}

func TestStepFor(t *testing.T) {
	for _, test := range []struct{ span, want int64 }{{0, 1}, {1999, 20}, {200_000, 1000}, {83 * 3_600_000, 900_000},
		{4000 * 86_400_000, 864_000_000}} {
		if got := stepFor(test.span, 400); got != test.want {
			t.Errorf("%d ms in steps of %d, want %d", test.span, got, test.want)
		}
	}
}
