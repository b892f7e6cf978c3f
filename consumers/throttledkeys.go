package consumers

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/internal/pause"
)

// throttledKeys counts how many keys each rule throttles, in the partitions that this process relays. So each
// partition is counted by one process.
type throttledKeys struct {
	*shared
	seen map[string]bool // rules that have had throttled keys: their gauges go to 0 and stay
}

// restPerRecord is the shortest pause for each record that was read. Redis reads a record in 2 to 3 µs, so counting
// takes a twentieth of Redis's time at most. The pause does not depend on how long the count took: while Redis is busy,
// many keys come and go, and the next count must not wait.
const restPerRecord = 50 * time.Microsecond

func (t *throttledKeys) run(ctx context.Context) {
	for {
		records, err := t.count(ctx)
		if err != nil && ctx.Err() == nil {
			t.Log.Debug("counting throttled keys failed", "error", err)
		}
		if !pause.For(ctx, max(t.GaugesEvery, time.Duration(records)*restPerRecord)) {
			return
		}
	}
}

// count sets the gauges. If a partition cannot be read, the gauges keep their values.
func (t *throttledKeys) count(ctx context.Context) (records int, err error) {
	byRule := map[string]int64{}
	for rule := range t.seen {
		byRule[rule] = 0
	}
	for _, p := range t.quarantine.open(ctx, slices.Collect(maps.Keys(t.locks.held()))) {
		n, err := t.Counter.CountThrottled(ctx, p, byRule)
		if records += n; err != nil {
			return records, err
		}
	}
	for rule, n := range byRule {
		t.seen[rule] = true
		t.Metrics.throttled.WithLabelValues(rule).Set(float64(n))
	}
	if t.Activity != nil {
		t.Activity.Throttled(byRule)
	}
	return records, nil
}
