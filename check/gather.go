package check

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/tracing"
)

// Bounds of a gatherer. (internal/counters/check.go bounds what a run sends at a time.)
const (
	maxGathered = 256    // calls of one run
	maxWaiting  = 20_000 // calls that wait for one
	// If a run takes longer than its callers wait, no caller gets an answer, and it counts as a failure of Redis. One
	// run of 256 calls with 100 keys each was such a run, and on_error then decided nearly all calls.
	maxGatheredKeys = 6400
)

var errTooManyWait = fmt.Errorf("%w: too many checks wait for Redis", api.ErrNotSent)

// gatherer lets calls that wait for the same server at the same time share one run of the script. If no run is under
// way, a call is sent at once and alone. Calls that come during a run are sent together when it ends. So a gatherer
// adds no latency to a quiet server, and the busier the server is, the less a call costs.
type gatherer struct {
	// send makes a run: that of a shard (shard.go).
	send    func(context.Context, [][]counters.Request) ([]counters.Verdict, error)
	timeout time.Duration // of a shared run
	tracer  trace.Tracer  // may be nil

	mu      sync.Mutex
	busy    bool // a run is under way
	waiting []*waiter
	calls   int       // number of calls in waiting
	running []*waiter // the callers of the run under way
	// lastRuns holds the durations of the last two answered runs. Under overload both are long. After one slow moment
	// only one is.
	lastRuns [2]time.Duration
	// timerAt is when timer wakes callers whose time has passed; zero: it does not run. With one timer for all callers
	// the server uses a twentieth less CPU than with one for each.
	timerAt time.Time
	timer   *time.Timer
}

// waiter holds one caller's calls. done receives true when their result is set, and false if they were sent but
// `until` passed first. A later value is dropped.
type waiter struct {
	calls    [][]counters.Request
	keys     int // of all calls
	verdicts []counters.Verdict
	err      error
	until    time.Time
	done     chan bool

	span tracing.Span // while it waits
	ran  tracing.Span // the run that answered it
}

// ask answers calls. If it returns an error, it also returns the verdicts of the calls that were answered
// nevertheless (counters.Verdict.Answered). If ctx ends or `until` passes first, calls that were already sent may be
// charged anyway. If they were certainly not sent, the error wraps api.ErrNotSent.
func (g *gatherer) ask(ctx context.Context, until time.Time, calls [][]counters.Request) (verdicts []counters.Verdict,
	err error) {
	g.mu.Lock()
	if !g.busy {
		g.busy = true
		g.mu.Unlock()
		defer g.next()
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		ctx, span := tracing.StartScript(ctx, g.tracer, "check", keysOf(calls))
		return g.timed(ctx, span, calls)
	}
	if g.calls+len(calls) > maxWaiting {
		g.mu.Unlock()
		return nil, errTooManyWait
	}
	w := &waiter{calls: calls, keys: keysOf(calls), until: until, done: make(chan bool, 1)}
	ctx, w.span = tracing.Start(ctx, g.tracer, "wait for a shared script call", trace.SpanKindInternal)
	defer func() { w.span.End(err) }()
	g.waiting = append(g.waiting, w)
	g.calls += len(calls)
	g.wakeBy(until)
	g.mu.Unlock()
	select {
	case answered := <-w.done:
		if answered {
			w.span.Link(w.ran.Context())
			return w.verdicts, w.err
		}
		return nil, context.DeadlineExceeded
	case <-ctx.Done():
		g.mu.Lock()
		defer g.mu.Unlock()
		if i := slices.Index(g.waiting, w); i >= 0 { // not sent: it never will be
			g.waiting = slices.Delete(g.waiting, i, i+1)
			g.calls -= len(calls)
			return nil, fmt.Errorf("%w: %w", api.ErrNotSent, ctx.Err())
		}
		return nil, ctx.Err()
	}
}

// keysOf counts the keys of all calls.
func keysOf(calls [][]counters.Request) (n int) {
	for _, call := range calls {
		n += len(call)
	}
	return n
}

// timed runs calls and notes how long they took.
func (g *gatherer) timed(ctx context.Context, span tracing.Span, calls [][]counters.Request) ([]counters.Verdict,
	error) {
	began := time.Now()
	verdicts, err := g.send(ctx, calls)
	span.End(err)
	if err == nil {
		g.mu.Lock()
		g.lastRuns = [2]time.Duration{g.lastRuns[1], time.Since(began)}
		g.mu.Unlock()
	}
	return verdicts, err
}

// finish wakes a caller, once.
func (w *waiter) finish(answered bool) {
	select {
	case w.done <- answered:
	default:
	}
}

// wakeBy sets the timer so that a caller is woken at `until`. g.mu is held.
func (g *gatherer) wakeBy(until time.Time) {
	if !g.timerAt.IsZero() && !until.Before(g.timerAt) {
		return
	}
	g.timerAt = until
	if g.timer == nil {
		g.timer = time.AfterFunc(time.Until(until), g.wakeLate)
	} else {
		g.timer.Reset(time.Until(until))
	}
}

// wakeLate wakes the callers whose time has passed, also those of a run that hangs.
func (g *gatherer) wakeLate() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.timerAt = time.Time{}
	g.dropLate(now)
	for _, w := range g.waiting {
		g.wakeBy(w.until)
	}
	for _, w := range g.running {
		if w.until.After(now) {
			g.wakeBy(w.until)
		} else {
			w.finish(false)
		}
	}
}

// dropLate removes and wakes the waiting callers whose time will have passed at `by`. g.mu is held.
func (g *gatherer) dropLate(by time.Time) {
	g.waiting = slices.DeleteFunc(g.waiting, func(w *waiter) bool {
		if w.until.After(by) {
			return false
		}
		g.calls -= len(w.calls)
		w.err = fmt.Errorf("%w: %w", api.ErrNotSent, context.DeadlineExceeded)
		w.finish(true)
		return true
	})
}

// next ends a run and starts the next one, with the calls that came during it.
func (g *gatherer) next() {
	if batch := g.take(); batch != nil {
		go func() {
			for ; batch != nil; batch = g.take() {
				g.runBatch(batch)
			}
		}()
	}
}

// take returns the callers of the next run, nil if nobody waits. It leaves out callers that have less time left than
// a run takes: they would be charged without an answer, and under overload that would happen to all callers.
func (g *gatherer) take() []*waiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropLate(time.Now().Add(min(g.lastRuns[0], g.lastRuns[1], g.timeout/2)))
	n, calls, keys := 0, 0, 0
	for ; n < len(g.waiting); n++ {
		w := g.waiting[n]
		if n > 0 && (calls+len(w.calls) > maxGathered || keys+w.keys > maxGatheredKeys) {
			break
		}
		calls, keys = calls+len(w.calls), keys+w.keys
	}
	g.running, g.busy = nil, n > 0
	if g.busy {
		g.running = slices.Clone(g.waiting[:n])
		g.waiting = slices.Delete(g.waiting, 0, n)
		g.calls -= calls
	}
	return g.running
}

// runBatch answers the calls of a batch of callers with one run.
func (g *gatherer) runBatch(batch []*waiter) {
	ctx, cancel := context.WithTimeout(context.Background(), g.timeout)
	defer cancel()
	calls := make([][]counters.Request, 0, len(batch))
	for _, w := range batch {
		calls = append(calls, w.calls...)
	}
	ctx, span := g.startShared(ctx, batch, keysOf(calls))
	verdicts, err := g.timed(ctx, span, calls)
	for _, w := range batch {
		w.ran = span
		if w.err = err; len(verdicts) > 0 { // empty if nothing was sent
			w.verdicts, verdicts = verdicts[:len(w.calls):len(w.calls)], verdicts[len(w.calls):]
		}
		if err != nil {
			// For example, the counter of one key is corrupt. A script that Redis refuses has charged nothing, so the
			// calls of each caller can be sent separately, and the other callers get their answers.
			g.askUnanswered(ctx, w, len(batch) > 1 && redisclient.IsRefusal(err))
		}
		w.finish(true)
	}
}

// startShared starts the span of a run for several callers. The span is in the trace of the first caller that is
// sampled, and is linked with the other callers.
func (g *gatherer) startShared(ctx context.Context, batch []*waiter, keys int) (context.Context, tracing.Span) {
	if g.tracer == nil {
		return ctx, tracing.Span{}
	}
	callers := make([]trace.SpanContext, len(batch))
	for i, w := range batch {
		callers[i] = w.span.Context()
	}
	ctx, others := tracing.Shared(ctx, callers)
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, tracing.Span{} // nobody's trace is sampled
	}
	ctx, span := tracing.StartScript(ctx, g.tracer, "check", keys)
	span.Link(others...)
	return ctx, span
}

// askUnanswered handles a waiter of a run that failed. If all its calls were answered, it gets no error. Otherwise,
// if repeat is true, the calls without an answer are sent again, without those of other waiters.
func (g *gatherer) askUnanswered(ctx context.Context, w *waiter, repeat bool) {
	var left []int
	var calls [][]counters.Request
	for i, call := range w.calls {
		if i >= len(w.verdicts) || !w.verdicts[i].Answered() {
			left, calls = append(left, i), append(calls, call)
		}
	}
	if len(left) == 0 {
		w.err = nil
		return
	}
	if !repeat {
		return
	}
	w.verdicts = slices.Grow(w.verdicts, len(w.calls))[:len(w.calls)]
	var verdicts []counters.Verdict
	verdicts, w.err = g.send(ctx, calls)
	for j, v := range verdicts {
		w.verdicts[left[j]] = v
	}
}
