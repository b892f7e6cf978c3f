package consumers

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/pause"
)

// throttledKeys counts how many keys each rule throttles, in the partitions that this process relays. So each
// partition is counted by one process.
type throttledKeys struct {
	counter    *counters.Redis
	held       func() map[int]context.Context
	quarantine *quarantine
	gauge      *prometheus.GaugeVec // by rule
	activity   Activity             // may be nil
	every      time.Duration
	log        *slog.Logger
	seen       map[string]bool // rules that have had throttled keys: their gauges go to 0 and stay
}

// restFactor is how many times as long as a count took the pause after it is at least. So with very many throttled
// keys, counting takes a twentieth of the time.
const restFactor = 20

func (t *throttledKeys) run(ctx context.Context) {
	for {
		began := time.Now()
		if err := t.count(ctx); err != nil && ctx.Err() == nil {
			t.log.Debug("counting throttled keys failed", "error", err)
		}
		if !pause.For(ctx, max(t.every, restFactor*time.Since(began))) {
			return
		}
	}
}

// count sets the gauges. If a partition cannot be read, the gauges keep their values.
func (t *throttledKeys) count(ctx context.Context) error {
	byRule := map[string]int64{}
	for rule := range t.seen {
		byRule[rule] = 0
	}
	held := t.held()
	parts := make([]int, 0, len(held))
	for p := range held {
		parts = append(parts, p)
	}
	for _, p := range t.quarantine.open(ctx, parts) {
		for one, err := range t.counter.ThrottledIn(ctx, p) {
			if err != nil {
				return err
			}
			byRule[one.Rule]++
		}
	}
	for rule, n := range byRule {
		t.seen[rule] = true
		t.gauge.WithLabelValues(rule).Set(float64(n))
	}
	if t.activity != nil {
		t.activity.Throttled(byRule)
	}
	return nil
}
