package check

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/redisclient"
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
}

func newGatherer(timeout time.Duration, run func(context.Context, [][]windows.Request) ([]windows.Verdict,
	error)) *gatherer {
	return &gatherer{run: run, timeout: timeout}
}

// do answers calls. With an error come the verdicts of those that were answered
// nevertheless (windows.Verdict.Answered). Where ctx ends first calls may be
// charged all the same, if they were sent already; the error wraps api.ErrNotSent
// where they certainly were not.
func (g *gatherer) do(ctx context.Context, calls [][]windows.Request) ([]windows.Verdict, error) {
	g.mu.Lock()
	if !g.busy {
		g.busy = true
		g.mu.Unlock()
		defer g.next()
		return g.run(ctx, calls)
	}
	if g.calls+len(calls) > maxWaiting {
		g.mu.Unlock()
		return nil, errTooManyWait
	}
	w := &waiter{calls: calls, done: make(chan struct{})}
	g.waiting = append(g.waiting, w)
	g.calls += len(calls)
	g.mu.Unlock()
	select {
	case <-w.done:
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
	verdicts, err := g.run(ctx, calls)
	for _, w := range some {
		if w.err = err; len(verdicts) > 0 { // none where nothing was sent
			w.verdicts, verdicts = verdicts[:len(w.calls):len(w.calls)], verdicts[len(w.calls):]
		}
		if err != nil && len(some) > 1 && redisclient.IsRefusal(err) {
			// One key's counter is broken, say. A script that is refused has charged
			// nobody, so each may be asked by itself, and the others get their answers.
			g.again(ctx, w)
		}
		close(w.done)
	}
}

// again asks the calls of w that have no answer, by themselves.
func (g *gatherer) again(ctx context.Context, w *waiter) {
	var left []int
	var calls [][]windows.Request
	for i, call := range w.calls {
		if i >= len(w.verdicts) || !w.verdicts[i].Answered() {
			left, calls = append(left, i), append(calls, call)
		}
	}
	if w.err = nil; len(left) == 0 {
		return
	}
	w.verdicts = slices.Grow(w.verdicts, len(w.calls))[:len(w.calls)]
	var verdicts []windows.Verdict
	verdicts, w.err = g.run(ctx, calls)
	for j, v := range verdicts {
		w.verdicts[left[j]] = v
	}
}
