package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/measure"
)

// contestant is one thing that is measured: an operation of the product or a
// yardstick. All of a part are given the same picks, keys by rank.
type contestant struct {
	name string
	// prepare says how many calls the picks make; what else it does is not
	// measured. nil: one call per pick.
	prepare func(ctx context.Context, picks []int) (calls int, err error)
	// call does the i-th of them. It is called from several goroutines at once.
	call func(ctx context.Context, picks []int, i int) (result, error)
	// tidy removes what would pile up; not measured either. nil: nothing does.
	tidy func(ctx context.Context) error
}

// result is what became of operations.
type result struct {
	ops              int64
	admitted, denied int64
	// of events that were folded; see windows.Folded
	folded, merged, late, gone int64
}

func (r *result) add(o result) {
	r.ops += o.ops
	r.admitted += o.admitted
	r.denied += o.denied
	r.folded += o.folded
	r.merged += o.merged
	r.late += o.late
	r.gone += o.gone
}

// tally is what was seen of some calls.
type tally struct {
	result
	asked         int64 // picks
	calls, errors int64
	first         error // the first of errors
	wall          time.Duration
	cpu           time.Duration // of Redis; valid if cpuTold
	cpuTold       bool
	lateStart     time.Duration // open loop: the latest that a call was started by us
	latency       *hdrhistogram.Histogram
}

const maxLatency = time.Minute

// newTally has latencies to three digits, from 1 µs to a minute.
func newTally() *tally {
	return &tally{cpuTold: true, latency: hdrhistogram.New(int64(time.Microsecond), int64(maxLatency), 3)}
}

// took notes one call. One that was cut off by the end of the run is none.
func (t *tally) took(ctx context.Context, d time.Duration, r result, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	t.add(r)
	t.calls++
	if err != nil {
		t.errors++
		if t.first == nil {
			t.first = err
		}
	}
	// A failed call took its time too: who waited for a timeout has waited.
	_ = t.latency.RecordValue(int64(min(max(d, 0), maxLatency)))
}

func (t *tally) merge(o *tally) {
	t.add(o.result)
	t.asked += o.asked
	t.calls += o.calls
	t.errors += o.errors
	if t.first == nil {
		t.first = o.first
	}
	t.wall += o.wall
	t.cpu += o.cpu
	t.cpuTold = t.cpuTold && o.cpuTold
	t.lateStart = max(t.lateStart, o.lateStart)
	t.latency.Merge(o.latency)
}

// cpuPerOp is in µs; false where it was not told or nothing was done.
func (t *tally) cpuPerOp() (float64, bool) {
	if !t.cpuTold || t.ops == 0 {
		return 0, false
	}
	return float64(t.cpu.Nanoseconds()) / 1e3 / float64(t.ops), true
}

// closedLoop makes calls from so many callers, each of which waits for its last
// call before the next.
func closedLoop(ctx context.Context, c clock, callers, calls int, do func(ctx context.Context, i int) (result,
	error)) *tally {
	each := make([]*tally, min(callers, calls))
	for w := range each {
		each[w] = newTally()
	}
	sum := newTally()
	var next atomic.Int64
	var running sync.WaitGroup
	start := c.now()
	for _, t := range each {
		running.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= calls {
					return
				}
				began := c.now()
				r, err := do(ctx, i)
				t.took(ctx, c.now().Sub(began), r, err)
			}
		})
	}
	running.Wait()
	wall := c.now().Sub(start)
	for _, t := range each {
		sum.merge(t)
	}
	sum.wall = wall
	return sum
}

// loop makes calls in the way of the part; closed or open.
type loop func(ctx context.Context, calls int, do func(ctx context.Context, i int) (result, error)) *tally

// runSlice measures one contestant over the picks. Its errors are those of what
// is not measured; those of calls are counted.
func runSlice(ctx context.Context, c redis.UniversalClient, run loop, who *contestant, picks []int) (*tally, error) {
	calls := len(picks)
	if who.prepare != nil {
		var err error
		if calls, err = who.prepare(ctx, picks); err != nil {
			return nil, err
		}
	}
	before, told := cpuOf(ctx, c)
	t := run(ctx, calls, func(ctx context.Context, i int) (result, error) { return who.call(ctx, picks, i) })
	after, toldAgain := cpuOf(ctx, c)
	t.cpu, t.cpuTold, t.asked = after-before, told && toldAgain, int64(len(picks))
	var err error
	if who.tidy != nil {
		err = who.tidy(ctx)
	}
	return t, errors.Join(err, ctx.Err())
}

func cpuOf(ctx context.Context, c redis.UniversalClient) (time.Duration, bool) {
	d, err := measure.CPU(ctx, c)
	return d, err == nil
}
