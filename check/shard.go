package check

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sony/gobreaker/v2"
	"go.opentelemetry.io/otel/trace"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// shard asks one server, or on a Cluster the one of a partition. Each has its own
// breaker, as a partition that moves or fails over must not take the answer from
// the others: what one shard does counts for that shard alone.
type shard struct {
	// breaker: sony/gobreaker is small, widely used, and keeps no state elsewhere.
	breaker *gobreaker.CircuitBreaker[[]counters.Verdict]
	timeout time.Duration
	*gatherer
}

// errHurried: the caller's deadline left the shard too little time for its
// failure to say anything.
var errHurried = errors.New("too little time was left to ask Redis")

// newShard makes one. If breaks is false, its breaker never opens. changed receives each new
// state of the breaker, and denials the keys that a run denied. tracer may be nil.
func newShard(counter *counters.Redis, timeout time.Duration, breaks bool, changed func(to gobreaker.State),
	denials *denials, tracer trace.Tracer) *shard {
	h := &shard{timeout: timeout, breaker: gobreaker.NewCircuitBreaker[[]counters.Verdict](gobreaker.Settings{
		Name:    "redis",
		Timeout: 500 * time.Millisecond, // open for this long, then one check tries
		ReadyToTrip: func(n gobreaker.Counts) bool {
			return breaks && n.ConsecutiveFailures >= 5
		},
		OnStateChange: func(_ string, _, to gobreaker.State) { changed(to) },
		IsSuccessful:  func(err error) bool { return err == nil || redisclient.IsRefusal(err) },
		IsExcluded:    func(err error) bool { return errors.Is(err, context.Canceled) || errors.Is(err, errHurried) },
	})}
	h.gatherer = newGatherer(timeout, tracer, func(ctx context.Context, calls [][]counters.Request) ([]counters.Verdict,
		error) {
		return h.execute(ctx, func() ([]counters.Verdict, error) {
			asked := denials.now()
			verdicts, err := counter.CheckMany(ctx, calls)
			if err == nil {
				denials.remember(calls, verdicts, asked)
			}
			return verdicts, err
		})
	})
	return h
}

// execute asks Redis behind the breaker. While it is open nothing is sent, and the
// error wraps api.ErrNotSent.
func (h *shard) execute(ctx context.Context, ask func() ([]counters.Verdict, error)) ([]counters.Verdict, error) {
	verdicts, err := h.breaker.Execute(func() ([]counters.Verdict, error) {
		start := time.Now()
		verdicts, err := ask()
		if err != nil && ctx.Err() != nil && !redisclient.IsRefusal(err) && time.Since(start) < h.timeout/2 {
			err = fmt.Errorf("%w: %w", errHurried, err)
		}
		return verdicts, err
	})
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		err = fmt.Errorf("%w: %w", api.ErrNotSent, err)
	}
	return verdicts, err
}
