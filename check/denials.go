package check

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/windows"
)

// How long what is remembered may serve.
const (
	// freshFor bounds the age of the knowledge that nothing came back before its time: since
	// Redis gave the denial, or since the partition's mark was read again. A client may remember
	// an answer for 10 ms more (client/denials.go): 50 in all.
	freshFor = 40 * time.Millisecond
	// readEvery is the least time from one reading of marks to the next, unless a call waits for it.
	readEvery = 30 * time.Millisecond
	// mostAge bounds what no mark tells: a counter that somebody deleted, a failover, a clock
	// that was set, and how old the units used in an answer may be.
	mostAge = time.Second
)

// denials remembers keys that Redis denied, and answers for them without Redis. It is exact: a window frees units only
// with time, so a key that is denied n units is denied n or more until the wait has passed. It does not remember keys
// of rules that count values, because another value may be admitted. A reset or a refund by any process frees units
// earlier. It changes the mark of the key's partition, which is read while answers come from here. Changed rules make
// another plan. All times are this process's monotonic clock. Safe for use by several goroutines.
type denials struct {
	counter marks
	leased  bool // only keys whose rule has lease are remembered
	now     func() time.Time
	start   func(read func()) // runs read beside the caller
	timeout time.Duration     // of a reading
	// patience bounds how long calls wait for a reading since it began: a check must fit in afterwards.
	patience time.Duration

	used       atomic.Bool // something was remembered once
	mu         sync.Mutex
	keys       *simplelru.LRU[string, *denial] // hashicorp/golang-lru, as in package client
	partitions []partition
	shards     []shardMarks
}

// marks is what a counters.Redis has of the marks.
type marks interface {
	Shards() int
	Shard(key string) int
	Partition(key string) int
	Partitions() int
	Freed(ctx context.Context, partitions []int) ([]string, error)
}

// denial is what Redis said of one key.
type denial struct {
	plan      *windows.Plan
	partition int
	shard     int
	cost      int64 // at least 1; as much, and more, is denied until then
	until     time.Time
	state     windows.KeyState
	// It was asked for and answered then: Redis decided in between.
	asked, answered time.Time
}

// partition is what is known of a partition's mark.
type partition struct {
	mark string
	// since is when this mark, or the end of an own reset or refund, was first known: denials
	// that were asked for before it are forgotten. asked is when the mark was last read.
	since, asked time.Time
	wanted       bool // an answer was given from here since it was read
}

// shardMarks is the state of readings from one shard.
type shardMarks struct {
	over   chan struct{} // of the reading under way, closed when it is over; nil: none is
	last   time.Time     // when the last one began
	failed bool          // the last one, so nobody waits for the next
}

// newDenials remembers so many keys; with 0 only some that may have leases.
func newDenials(counter marks, size int, now func() time.Time, timeout time.Duration) *denials {
	d := &denials{counter: counter, leased: size < 1, now: now, timeout: timeout, patience: min(freshFor, timeout/4),
		start:      func(read func()) { go read() },
		partitions: make([]partition, counter.Partitions()), shards: make([]shardMarks, counter.Shards())}
	if d.leased {
		size = maxLeases
	}
	d.keys, _ = simplelru.NewLRU[string, *denial](size, nil) // the error is for a size below 1
	return d
}

// remember notes whom a run denied that was sent at `asked`. An answer which Redis gave before a
// reset, and which comes after it, serves nobody: the partition's since is later than asked then.
func (d *denials) remember(calls [][]counters.Request, verdicts []counters.Verdict, asked time.Time) {
	answered := d.now()
	for i, v := range verdicts {
		if v.Allowed || v.Replayed || v.OtherBody {
			continue
		}
		for j, request := range calls[i] {
			// Redis decided after asked, within the millisecond that its clock showed.
			d.add(request, v.Items[j], asked.Add(-time.Millisecond), asked, answered)
		}
	}
}

// add notes that Redis denies a request, if it does; its waits begin at a moment.
func (d *denials) add(request counters.Request, state windows.KeyState, from, asked, answered time.Time) {
	if request.ChargesDenied() || len(request.Values) > 0 || d.leased && request.Plan.LeaseTime() == 0 {
		return
	}
	one := &denial{plan: request.Plan, cost: max(1, request.Cost), state: state, asked: asked, answered: answered,
		until: from.Add(mostAge), partition: d.counter.Partition(request.Key), shard: d.counter.Shard(request.Key)}
	for _, s := range append([]windows.KeyState{state}, state.Shadows...) {
		switch {
		case s.RetryAfter == 0: // it is free, or a shadow rule admits it, which charges of others may change
			return
		case s.RetryAfter > 0:
			if end := from.Add(s.RetryAfter); end.Before(one.until) {
				one.until = end
			}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.keys.Peek(request.Key); ok && known.plan == one.plan &&
		(asked.Before(known.asked) || asked.Equal(known.asked) && known.cost < one.cost) {
		return
	}
	d.keys.Add(strings.Clone(request.Key), one) // it may be a part of a long request
	d.used.Store(true)
}

// certainty is what is known of a request's denial.
type certainty int

const (
	unknown certainty = iota
	old               // it is denied, unless something came back since the marks were read
	certain
)

// find gives the denial of the key of a request, whose call came at a moment, nil where there is none. Under mu.
func (d *denials) find(request counters.Request, came, now time.Time) (*denial, certainty) {
	one, ok := d.keys.Get(request.Key)
	if !ok || one.plan != request.Plan || max(1, request.Cost) < one.cost || !came.Before(one.until) {
		return nil, unknown
	}
	p := &d.partitions[one.partition]
	switch {
	case !one.asked.After(p.since):
		return one, unknown
	case now.Sub(one.asked) < freshFor || now.Sub(p.asked) < freshFor || !p.asked.Before(came):
		return one, certain
	case p.asked.IsZero(): // the first reading only begins to know
		return one, unknown
	}
	return one, old
}

// lookup gives where the key of a request stands that is denied for certain.
func (d *denials) lookup(request counters.Request, came time.Time) (windows.KeyState, certainty) {
	now := d.now()
	d.mu.Lock()
	one, known := d.find(request, came, now)
	due := false
	if one != nil {
		d.partitions[one.partition].wanted = true
		due = now.Sub(d.shards[one.shard].last) >= readEvery && d.begin(one.shard, now)
	}
	d.mu.Unlock()
	if due {
		d.start(func() { d.read(one.shard) })
	}
	if known != certain {
		return windows.KeyState{}, known
	}
	if last := one.until.Add(-time.Millisecond); now.After(last) { // the call waited: it is denied all the same
		now = last
	}
	return one.state.After(now.Sub(one.answered)), certain
}

// await gives what is closed when marks have been read that tell whether an old denial is certain, and for how long it
// is worth waiting for; nil where it is not.
func (d *denials) await(request counters.Request, came time.Time) (reading <-chan struct{}, atMost time.Duration) {
	now := d.now()
	d.mu.Lock()
	one, known := d.find(request, came, now)
	if known != old {
		d.mu.Unlock()
		if known == certain { // by a reading that has just ended
			return closed, d.patience
		}
		return nil, 0
	}
	l, due := &d.shards[one.shard], false
	if !l.failed {
		due = d.begin(one.shard, now)
		atMost = d.patience - now.Sub(l.last)
	}
	if atMost > 0 {
		reading = l.over
	}
	d.mu.Unlock()
	if due {
		d.start(func() { d.read(one.shard) })
	}
	return reading, atMost
}

// closed is a reading that is over.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// begin notes that marks of a shard are read from now on; false where they are already. Under mu.
func (d *denials) begin(shard int, now time.Time) bool {
	l := &d.shards[shard]
	if l.over != nil {
		return false
	}
	l.over, l.last = make(chan struct{}), now
	return true
}

// read reads the marks of the partitions of a shard from which answers were given.
func (d *denials) read(shard int) {
	d.mu.Lock()
	var wanted []int
	for p := range d.partitions {
		if d.partitions[p].wanted && (len(d.shards) == 1 || p == shard) {
			d.partitions[p].wanted = false
			wanted = append(wanted, p)
		}
	}
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), d.timeout)
	defer cancel()
	asked := d.now()
	marks, err := d.counter.Freed(ctx, wanted)
	answered := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	l := &d.shards[shard]
	close(l.over)
	l.over, l.failed = nil, err != nil
	if err != nil {
		return // what is not fresh is asked for again
	}
	for i, n := range wanted {
		p := &d.partitions[n]
		if p.asked.IsZero() || p.mark != marks[i] {
			p.mark = marks[i]
			p.since = answered
		}
		p.asked = asked
	}
}

// changed forgets a key.
func (d *denials) changed(key string, _ change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keys.Remove(key)
	p := &d.partitions[d.counter.Partition(key)]
	if now := d.now(); p.since.Before(now) {
		p.since = now
	}
}
