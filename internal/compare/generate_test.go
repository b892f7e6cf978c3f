package compare

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestBoundary(t *testing.T) {
	for _, per := range []time.Duration{MinBoundaryWindow, 33 * time.Millisecond, 10 * time.Second, 24 * time.Hour} {
		list := Boundary(window(7, per))
		w := per.Milliseconds()
		for i, want := range []struct{ before, after int64 }{{w / 10, w / 10}, {1, w * 9 / 10}} {
			r := list[i].Requests
			if len(r) != 14 {
				t.Fatalf("per %s: %d requests, want two bursts of 7", per, len(r))
			}
			first, second := r[0].Ms, r[13].Ms
			for j, one := range r {
				if ms := []int64{first, second}[j/7]; one != (Request{ms, r[0].Key, 1}) {
					t.Errorf("per %s: request %d is %+v", per, j, one)
				}
			}
			edge := first + want.before
			if edge%w != 0 || second-edge != want.after {
				t.Errorf("per %s: bursts at %d and %d, want %d before and %d after an edge", per, first, second,
					want.before, want.after)
			}
			if second-first >= w {
				t.Errorf("per %s: %d ms lie between the bursts: no window holds both", per, second-first)
			}
		}
	}
}

func TestPoisson(t *testing.T) {
	p := Poisson{Rate: 50, Requests: 20_000, Keys: 4, MaxCost: 3, Seed: 7}
	trace := p.Trace()
	if diff := cmp.Diff(trace, p.Trace()); diff != "" {
		t.Errorf("the same seed gave another trace:\n%s", diff)
	}
	p.Seed++
	if slices.Equal(p.Trace().Requests, trace.Requests) {
		t.Error("another seed gave the same trace")
	}
	if *trace.Seed != 7 {
		t.Errorf("the trace says seed %d, want 7", *trace.Seed)
	}
	keys, costs := map[string]int{}, map[int64]int{}
	last := int64(start)
	var gaps, squares float64
	for _, r := range trace.Requests {
		if r.Ms < last {
			t.Fatalf("%+v comes after %d ms", r, last)
		}
		gap := float64(r.Ms - last)
		gaps, squares, last = gaps+gap, squares+gap*gap, r.Ms
		keys[r.Key]++
		costs[r.Cost]++
	}
	// Fixed seeds: these say what a Poisson process is, and never fail by chance.
	n := float64(len(trace.Requests))
	mean := gaps / n
	if deviation := math.Sqrt(squares/n - mean*mean); math.Abs(mean-20) > 0.5 || math.Abs(deviation-mean) > 0.5 {
		t.Errorf("gaps of %.2f ms, deviation %.2f; want both about 20", mean, deviation)
	}
	if len(keys) != 4 || len(costs) != 3 {
		t.Errorf("keys %v and costs %v, want 4 and 3 of them", keys, costs)
	}
	for k, n := range keys {
		if n < 4700 || n > 5300 {
			t.Errorf("%s has %d requests, want about a quarter", k, n)
		}
	}
}
