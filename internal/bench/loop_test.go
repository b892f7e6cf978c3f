package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// One call at a time, each slower than the schedule: the k-th waits for all
// before it, and its latency says so.
func TestOpenLoopCountsLatencyFromTheSchedule(t *testing.T) {
	h := newHand()
	const calls = 20
	got := openLoop(t.Context(), h.clock(), 100, 1, calls, func(context.Context, int) (result, error) {
		h.advance(50 * time.Millisecond)
		return result{ops: 1}, nil
	})
	if got.calls != calls || got.ops != calls {
		t.Fatalf("%d calls, %d operations, want %d", got.calls, got.ops, calls)
	}
	// Scheduled every 10 ms, done every 50: 50, 90, 130 ms …
	for k := range calls {
		want := int64(50+40*k) * int64(time.Millisecond)
		have := got.latency.ValueAtQuantile(100 * float64(k+1) / calls)
		if diff := have - want; diff < -want/500 || diff > want/500 {
			t.Errorf("latency %d is %s, want %s", k, time.Duration(have), time.Duration(want))
		}
	}
	if want := (calls - 1) * 40 * time.Millisecond; got.lateStart != want {
		t.Errorf("a call was started %s late at worst, want %s", got.lateStart, want)
	}
	if got.wall != calls*50*time.Millisecond {
		t.Errorf("it took %s, want 1s", got.wall)
	}
}

// No call waits for an earlier one: none ends before all have begun.
func TestOpenLoopWaitsForNobody(t *testing.T) {
	h := newHand()
	const calls = 50
	var begun atomic.Int32
	all := make(chan struct{})
	patience, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	got := openLoop(t.Context(), h.clock(), 1000, calls, calls, func(context.Context, int) (result, error) {
		if begun.Add(1) == calls {
			close(all)
		}
		select {
		case <-all:
			return result{ops: 1}, nil
		case <-patience.Done():
			return result{}, errors.New("the others did not begin")
		}
	})
	if got.errors != 0 || got.ops != calls {
		t.Errorf("%d operations, %d errors: %v", got.ops, got.errors, got.first)
	}
	if got.wall < calls*time.Millisecond {
		t.Errorf("%d calls at 1000/s took %s", calls, got.wall)
	}
}

func TestClosedLoopMakesEachCallOnce(t *testing.T) {
	for _, callers := range []int{1, 7, 200} {
		var mu sync.Mutex
		seen := map[int]int{}
		got := closedLoop(t.Context(), realClock, callers, 100, func(_ context.Context, i int) (result, error) {
			mu.Lock()
			defer mu.Unlock()
			seen[i]++
			return outcome(i%4 == 0), nil
		})
		for i := range 100 {
			if seen[i] != 1 {
				t.Errorf("%d callers: call %d was made %d times", callers, i, seen[i])
			}
		}
		if got.ops != 100 || got.calls != 100 || got.admitted != 25 || got.denied != 75 ||
			got.latency.TotalCount() != 100 {
			t.Errorf("%d callers: %+v", callers, got.result)
		}
	}
}

func TestClosedLoopCountsErrorsAndGoesOn(t *testing.T) {
	h, wrong := newHand(), errors.New("wrong")
	got := closedLoop(t.Context(), h.clock(), 1, 10, func(_ context.Context, i int) (result, error) {
		h.advance(5 * time.Millisecond)
		if i == 3 {
			return result{}, wrong
		}
		if i > 6 {
			return result{}, errors.New("later")
		}
		return result{ops: 1}, nil
	})
	if got.ops != 6 || got.calls != 10 || got.errors != 4 || !errors.Is(got.first, wrong) {
		t.Errorf("%d operations, %d calls, %d errors, first %v", got.ops, got.calls, got.errors, got.first)
	}
	if p := time.Duration(got.latency.ValueAtQuantile(50)); p < 4990*time.Microsecond || p > 5010*time.Microsecond ||
		got.wall != 50*time.Millisecond {
		t.Errorf("p50 %s, in all %s, want 5ms and 50ms", p, got.wall)
	}
}

// A call that the end of the run cuts off is no error of the server's.
func TestWhatIsCutOffIsNotCounted(t *testing.T) {
	for name, run := range map[string]func(context.Context, func(context.Context, int) (result, error)) *tally{
		"closed": func(ctx context.Context, do func(context.Context, int) (result, error)) *tally {
			return closedLoop(ctx, newHand().clock(), 1, 10, do)
		},
		"open": func(ctx context.Context, do func(context.Context, int) (result, error)) *tally {
			return openLoop(ctx, newHand().clock(), 100, 1, 10, do)
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		got := run(ctx, func(ctx context.Context, i int) (result, error) {
			if i == 4 {
				cancel()
				return result{}, ctx.Err()
			}
			return result{ops: 1}, nil
		})
		if got.ops != 4 || got.calls != 4 || got.errors != 0 {
			t.Errorf("%s: %d operations, %d calls, %d errors, want 4, 4, 0", name, got.ops, got.calls, got.errors)
		}
	}
}

func TestPaceByCount(t *testing.T) {
	for _, c := range []struct{ count, least, slices int }{{1000, 10, 20}, {1000, 300, 4}, {7, 1, 7}, {1, 1, 1},
		{41, 1, 14}, {10_000_000, 10, 50}, {300_000, 1_000_000, 2}} {
		p, sum, n := byCount(c.count, c.least), 0, 0
		for k := p.next(); k > 0; k = p.next() {
			p.took(k, time.Second)
			sum, n = sum+k, n+1
		}
		if sum != c.count || n != c.slices || p.fraction() != 1 {
			t.Errorf("%+v: %d operations in %d slices, %.2f done", c, sum, n, p.fraction())
		}
	}
}

// By time, slices grow to a twentieth of it, and it ends when the time is over.
func TestPaceByTime(t *testing.T) {
	const perOp = 100 * time.Microsecond
	p := byTime(2*time.Second, 10, 0)
	spent, last := time.Duration(0), 0
	for n := p.next(); n > 0; n = p.next() {
		p.took(n, time.Duration(n)*perOp)
		spent += time.Duration(n) * perOp
		last = n
	}
	if last != 1000 || spent < 2*time.Second || spent > 2*time.Second+100*time.Millisecond {
		t.Errorf("the last slice had %d operations, all took %s; want 1000 and about 2s", last, spent)
	}
	// A server that slows down has smaller ones, by half at most at a time.
	p = byTime(time.Minute, 10, 1000)
	if p.took(1000, time.Minute/2); p.n != 500 {
		t.Errorf("after a slice of 1000 that was far too long comes one of %d, want 500", p.n)
	}
	p = byTime(time.Second, 500, 0)
	if p.took(500, time.Second); p.n != 500 {
		t.Errorf("a slice of %d, least is 500", p.n)
	}
}
