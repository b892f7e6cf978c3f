package check

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// shard sends calls to one server, or on a Cluster to the server of one partition. Its gatherer (gather.go) has ask,
// which lets calls share a run, and send makes a run. Each shard has its own breaker: a partition that moves or fails
// over must not stop the answers of the others, so the failures of a shard count for that shard alone.
type shard struct {
	counter *counters.Redis
	denials *denials
	// breaker: sony/gobreaker is small, widely used, and keeps no state elsewhere.
	breaker *gobreaker.CircuitBreaker[struct{}]
	failed  atomic.Pointer[error] // the last failure
	gatherer
}

// errNoTime means that the caller left too little time: the failure says nothing about the shard.
var errNoTime = errors.New("too little time was left to ask Redis")

// newShard makes a shard. changed receives each new state of the breaker, and denials the keys that a run denied.
func newShard(c Config, changed func(to gobreaker.State, why error), denials *denials) *shard {
	h := &shard{counter: c.Counter, denials: denials}
	h.gatherer = gatherer{send: h.send, timeout: c.Timeout, tracer: c.Tracer}
	h.breaker = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name:    "redis",
		Timeout: 500 * time.Millisecond, // open for this long, then one check tries
		ReadyToTrip: func(n gobreaker.Counts) bool {
			return c.NoAnswer == nil && n.ConsecutiveFailures >= 5
		},
		OnStateChange: func(_ string, _, to gobreaker.State) { changed(to, *h.failed.Load()) },
		IsSuccessful:  func(err error) bool { return err == nil || redisclient.IsRefusal(err) },
		IsExcluded:    func(err error) bool { return errors.Is(err, context.Canceled) || errors.Is(err, errNoTime) },
	})
	return h
}

// send makes one run: it sends calls to the counter, behind the breaker.
func (h *shard) send(ctx context.Context, calls [][]counters.Request) (verdicts []counters.Verdict, err error) {
	err = h.execute(ctx, func() (err error) {
		asked := h.denials.now()
		if verdicts, err = h.counter.CheckMany(ctx, calls); err == nil {
			h.denials.remember(calls, verdicts, asked)
		}
		return err
	})
	return verdicts, err
}

// execute runs ask behind the breaker. If the breaker is open or ctx has ended, nothing is sent, and the error wraps
// api.ErrNotSent. If the breaker is open and the last failure was a refusal, the error wraps that too.
func (h *shard) execute(ctx context.Context, ask func() error) error {
	_, err := h.breaker.Execute(func() (struct{}, error) {
		start := time.Now()
		if err := pause.Gone(ctx); err != nil {
			return struct{}{}, fmt.Errorf("%w: %w: %w", api.ErrNotSent, errNoTime, err)
		}
		err := ask()
		if err != nil && pause.Gone(ctx) != nil && !redisclient.IsRefusal(err) && time.Since(start) < h.timeout/2 {
			err = fmt.Errorf("%w: %w", errNoTime, err)
		}
		if err != nil {
			h.failed.Store(&err)
		}
		return struct{}{}, err
	})
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		err = fmt.Errorf("%w: %w", api.ErrNotSent, err)
		var refusal redis.Error
		if errors.As(*h.failed.Load(), &refusal) {
			err = fmt.Errorf("%w: %w", err, refusal)
		}
	}
	return err
}
