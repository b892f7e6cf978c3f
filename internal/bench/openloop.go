package bench

import (
	"context"
	"sync"
	"time"
)

// clock is time as the loops see it; tests hand in their own.
type clock struct {
	now func() time.Time
	// until waits until a time, not at all where it has passed; false where ctx
	// ended first.
	until func(ctx context.Context, at time.Time) bool
}

var realClock = clock{now: time.Now, until: func(ctx context.Context, at time.Time) bool {
	for ctx.Err() == nil {
		wait := time.Until(at)
		if wait <= 0 {
			return true
		}
		if wait < 2*time.Millisecond {
			sleepShort(wait)
			continue
		}
		t := time.NewTimer(wait - time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
	return false
}}

// maxInFlight bounds what a server that does not keep up costs this process. At
// the bound calls start late, and their latency says so.
const maxInFlight = 20_000

// openLoop starts rate calls per second, each at its scheduled time whatever the
// earlier ones do, and counts their latency from that time. So a server that
// stands still for a second shows a second's worth of slow calls, not one per
// connection (coordinated omission: Gil Tene, "How NOT to Measure Latency").
func openLoop(ctx context.Context, c clock, rate float64, inFlight, calls int,
	do func(ctx context.Context, i int) (result, error)) *tally {
	var mu sync.Mutex
	sum := newTally()
	slots := make(chan struct{}, inFlight)
	var running sync.WaitGroup
	start := c.now()
	scheduled := func(i int) time.Time { return start.Add(time.Duration(float64(i) / rate * float64(time.Second))) }
	for i := range calls {
		at := scheduled(i)
		slots <- struct{}{}
		if !c.until(ctx, at) {
			break
		}
		late := c.now().Sub(at)
		running.Go(func() {
			defer func() { <-slots }()
			r, err := do(ctx, i)
			took := c.now().Sub(at)
			mu.Lock()
			defer mu.Unlock()
			sum.took(ctx, took, r, err)
			sum.lateStart = max(sum.lateStart, late)
		})
	}
	running.Wait()
	// The last call's interval belongs to the slice, or a rate would seem exceeded.
	sum.wall = max(c.now().Sub(start), scheduled(calls).Sub(start))
	return sum
}
