package check

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/tracing"
	"github.com/streamcounter/streamcounter/windows"
)

// Bounds of a gatherer. A run of maxGathered takes Redis a few milliseconds.
const (
	maxGathered = 256    // calls of one run
	maxWaiting  = 20_000 // calls that wait for one
)

var errTooManyWait = fmt.Errorf("%w: too many checks wait for Redis", api.ErrNotSent)

// gatherer lets calls that wait for the same server at the same time share one
// run of the script. While none is under way a call goes at once and by itself;
// what comes meanwhile goes together when it ends. So it adds no latency to a
// quiet server, and the busier it is the less a call costs.
type gatherer struct {
	run     func(context.Context, [][]windows.Request) ([]windows.Verdict, error)
	timeout time.Duration // of a run that was gathered
	tracer  trace.Tracer  // may be nil

	mu      sync.Mutex
	busy    bool // a run is under way
	waiting []*waiter
	calls   int // those of waiting
}

// waiter is one caller's calls and, once done is closed, what became of them.
type waiter struct {
	calls    [][]windows.Request
	verdicts []windows.Verdict
	err      error
	done     chan struct{}

	span tracing.Span // while it waits
	ran  tracing.Span // the run that answered it
}

func newGatherer(timeout time.Duration, tracer trace.Tracer,
	run func(context.Context, [][]windows.Request) ([]windows.Verdict, error)) *gatherer {
	return &gatherer{run: run, timeout: timeout, tracer: tracer}
}

// do answers calls. With an error come the verdicts of those that were answered
// nevertheless (windows.Verdict.Answered). Where ctx ends first calls may be
// charged all the same, if they were sent already; the error wraps api.ErrNotSent
// where they certainly were not.
func (g *gatherer) do(ctx context.Context, calls [][]windows.Request) (verdicts []windows.Verdict, err error) {
	g.mu.Lock()
	if !g.busy {
		g.busy = true
		g.mu.Unlock()
		defer g.next()
		ctx, span := tracing.StartScript(ctx, g.tracer, "check", len(calls))
		verdicts, err = g.run(ctx, calls)
		span.End(err)
		return verdicts, err
	}
	if g.calls+len(calls) > maxWaiting {
		g.mu.Unlock()
		return nil, errTooManyWait
	}
	w := &waiter{calls: calls, done: make(chan struct{})}
	ctx, w.span = tracing.Start(ctx, g.tracer, "wait for a shared script call", trace.SpanKindInternal)
	defer func() { w.span.End(err) }()
	g.waiting = append(g.waiting, w)
	g.calls += len(calls)
	g.mu.Unlock()
	select {
	case <-w.done:
		w.span.Link(w.ran.Context())
		return w.verdicts, w.err
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

// next ends a run and begins that of the calls which came meanwhile.
func (g *gatherer) next() {
	if some := g.take(); some != nil {
		go func() {
			for ; some != nil; some = g.take() {
				g.answer(some)
			}
		}()
	}
}

// take gives the calls of the next run, nil where nobody waits.
func (g *gatherer) take() []*waiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, calls := 0, 0
	for n < len(g.waiting) && (n == 0 || calls+len(g.waiting[n].calls) <= maxGathered) {
		calls += len(g.waiting[n].calls)
		n++
	}
	if n == 0 {
		g.busy = false
		return nil
	}
	some := slices.Clone(g.waiting[:n])
	g.waiting = slices.Delete(g.waiting, 0, n)
	g.calls -= calls
	return some
}

func (g *gatherer) answer(some []*waiter) {
	ctx, cancel := context.WithTimeout(context.Background(), g.timeout)
	defer cancel()
	calls := make([][]windows.Request, 0, len(some))
	for _, w := range some {
		calls = append(calls, w.calls...)
	}
	ctx, span := g.startShared(ctx, some, len(calls))
	verdicts, err := g.run(ctx, calls)
	span.End(err)
	for _, w := range some {
		w.ran = span
		if w.err = err; len(verdicts) > 0 { // none where nothing was sent
			w.verdicts, verdicts = verdicts[:len(w.calls):len(w.calls)], verdicts[len(w.calls):]
		}
		if err != nil {
			// One key's counter is broken, say. A script that is refused has charged nobody, so
			// each may be asked by itself, and the others get their answers.
			g.resolve(ctx, w, len(some) > 1 && redisclient.IsRefusal(err))
		}
		close(w.done)
	}
}

// startShared starts the span of a run for several callers: in the trace of the first of them that is
// sampled, and linked with the others.
func (g *gatherer) startShared(ctx context.Context, some []*waiter, calls int) (context.Context, tracing.Span) {
	if g.tracer == nil {
		return ctx, tracing.Span{}
	}
	callers := make([]trace.SpanContext, len(some))
	for i, w := range some {
		callers[i] = w.span.Context()
	}
	ctx, others := tracing.Join(ctx, callers)
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, tracing.Span{} // nobody's trace is sampled
	}
	ctx, span := tracing.StartScript(ctx, g.tracer, "check", calls)
	span.Link(others...)
	return ctx, span
}

// resolve is for a waiter of a run that failed: it has no error where all its calls were
// answered before. The others are asked by themselves where `repeat` says that they can be.
func (g *gatherer) resolve(ctx context.Context, w *waiter, repeat bool) {
	var left []int
	var calls [][]windows.Request
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
	var verdicts []windows.Verdict
	verdicts, w.err = g.run(ctx, calls)
	for j, v := range verdicts {
		w.verdicts[left[j]] = v
	}
}
