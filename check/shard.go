package check

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
	"go.opentelemetry.io/otel/trace"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// shard sends calls to one server, or on a Cluster to the server of one partition. Each shard has its own breaker: a
// partition that moves or fails over must not stop the answers of the others, so the failures of a shard count for
// that shard alone.
type shard struct {
	// breaker: sony/gobreaker is small, widely used, and keeps no state elsewhere.
	breaker *gobreaker.CircuitBreaker[[]counters.Verdict]
	timeout time.Duration
	failed  atomic.Pointer[error] // the last failure
	*gatherer
}

// errHurried means that the caller's deadline left so little time that the failure says nothing about the shard.
var errHurried = errors.New("too little time was left to ask Redis")

// newShard makes a shard. If breaks is false, its breaker never opens. changed receives each new state of the
// breaker, and denials the keys that a run denied. tracer may be nil.
func newShard(counter *counters.Redis, timeout time.Duration, breaks bool, changed func(to gobreaker.State,
	why error), denials *denials, tracer trace.Tracer) *shard {
	h := &shard{timeout: timeout}
	h.breaker = gobreaker.NewCircuitBreaker[[]counters.Verdict](gobreaker.Settings{
		Name:    "redis",
		Timeout: 500 * time.Millisecond, // open for this long, then one check tries
		ReadyToTrip: func(n gobreaker.Counts) bool {
			return breaks && n.ConsecutiveFailures >= 5
		},
		OnStateChange: func(_ string, _, to gobreaker.State) { changed(to, *h.failed.Load()) },
		IsSuccessful:  func(err error) bool { return err == nil || redisclient.IsRefusal(err) },
		IsExcluded:    func(err error) bool { return errors.Is(err, context.Canceled) || errors.Is(err, errHurried) },
	})
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

// execute runs ask behind the breaker. While the breaker is open, nothing is sent, and the error wraps
// api.ErrNotSent.
func (h *shard) execute(ctx context.Context, ask func() ([]counters.Verdict, error)) ([]counters.Verdict, error) {
	verdicts, err := h.breaker.Execute(func() ([]counters.Verdict, error) {
		start := time.Now()
		verdicts, err := ask()
		if err != nil && ctx.Err() != nil && !redisclient.IsRefusal(err) && time.Since(start) < h.timeout/2 {
			err = fmt.Errorf("%w: %w", errHurried, err)
		}
		if err != nil {
			h.failed.Store(&err)
		}
		return verdicts, err
	})
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		err = fmt.Errorf("%w: %w", api.ErrNotSent, err)
	}
	return verdicts, err
}
