package check

import (
	"context"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/windows"
)

// How long remembered denials may be used.
const (
	// freshFor is how long a denial is certain after it was asked for in Redis, or after the partition's mark was read
	// again. Units that come back early are not noticed for that long. A client may remember an answer for 10 ms more
	// (client/denials.go): 50 ms in all.
	freshFor = 40 * time.Millisecond
	// readEvery is the least time from one reading of marks to the next, unless a call waits for it.
	readEvery = 30 * time.Millisecond
	// maxAge is how long a denial is remembered at most. Some changes do not change a mark: a counter that somebody
	// deleted, a failover, a clock that was set. It also bounds how old the used units in an answer may be.
	maxAge = time.Second
)

// denials remembers keys that Redis denied, and answers for them without Redis. It is exact: a window frees units
// only with time, so a key that is denied n units is denied n or more until the wait has passed. It does not remember
// keys of rules that count values, because another value may be admitted. A reset or a refund by any process frees
// units earlier. A reset and a refund change a value in Redis, the mark of the key's partition, and the marks are read
// while answers come from here. After a change of the rules a key has another plan, and its denial is not used. All
// times are this process's monotonic clock. Safe for use by several goroutines.
type denials struct {
	counter marks
	leased  bool // only keys whose rule has lease are remembered
	now     func() time.Time
	start   func(read func()) // runs read without blocking the caller
	timeout time.Duration     // of a reading
	// maxWait bounds how long calls wait for a reading, counted from its start: there must be time for a check in
	// Redis afterwards.
	maxWait time.Duration

	used       atomic.Bool // something was remembered at least once
	mu         sync.Mutex
	keys       *simplelru.LRU[string, *denial] // hashicorp/golang-lru, as in package client
	partitions []partition
	shards     []shardMarks
}

// marks has the methods of counters.Redis that are about marks.
type marks interface {
	Shards() int
	Shard(key string) int
	Partition(key string) int
	Partitions() int
	Freed(ctx context.Context, partitions []int) ([]string, error)
}

// denial is Redis's denial of one key.
type denial struct {
	plan      *windows.Plan
	partition int
	shard     int
	// This cost, at least 1, and every higher one are denied until `until`. math.MaxInt64: the key was charged since.
	cost  int64
	until time.Time
	state windows.KeyState
	// When the request was sent, and the earliest time at which Redis can have decided: the waits in state begin then.
	asked, from time.Time
}

// partition is what is known about a partition's mark.
type partition struct {
	mark string
	// since is when this mark was first known, or when a reset or refund by this process ended: denials that were
	// asked for before since are not used. asked is when the last reading of the mark began.
	since, asked time.Time
	wanted       bool // a denial was looked up here since the mark was read
}

// shardMarks is the state of readings from one shard.
type shardMarks struct {
	over   chan struct{} // closed when the present reading ends; nil: nothing is read now
	last   time.Time     // when the last one began
	failed bool          // the last reading failed, so no call waits for the next
}

// newDenials makes denials that remember up to size keys. If size is 0, they remember only keys whose rule has lease,
// up to maxLeases.
func newDenials(counter marks, size int, now func() time.Time, timeout time.Duration) *denials {
	d := &denials{counter: counter, leased: size < 1, now: now, timeout: timeout, maxWait: min(freshFor, timeout/4),
		start:      func(read func()) { go read() },
		partitions: make([]partition, counter.Partitions()), shards: make([]shardMarks, counter.Shards())}
	if d.leased {
		size = maxLeases
	}
	d.keys, _ = simplelru.NewLRU[string, *denial](size, nil) // the error is for a size below 1
	return d
}

// remember records the keys that a run denied, and ends what is known about keys that it charged. The run was sent at
// `asked`. An answer that Redis gave before a reset, but that arrives after the reset, is not used: the partition's
// since is then later than asked.
func (d *denials) remember(calls [][]counters.Request, verdicts []counters.Verdict, asked time.Time) {
	for i, v := range verdicts {
		if v.Replayed || v.OtherBody {
			continue
		}
		for j, request := range calls[i] {
			if request.Cost > 0 && (v.Allowed && request.Mode != api.ModeLook || request.ChargesDenied()) {
				d.charged(request.Key, asked)
			}
			if v.Allowed {
				continue
			}
			// Redis decided after asked, within the millisecond that its clock showed.
			d.add(request, v.Items[j], asked.Add(-time.Millisecond), asked)
		}
	}
}

// add records that Redis denies a request, if it does. The waits in the state begin at `from`.
func (d *denials) add(request counters.Request, state windows.KeyState, from, asked time.Time) {
	if request.ChargesDenied() || len(request.Values) > 0 || d.leased && request.Plan.LeaseTime() == 0 {
		return
	}
	one := &denial{plan: request.Plan, cost: max(1, request.Cost), state: state, asked: asked, from: from,
		until: from.Add(maxAge), partition: d.counter.Partition(request.Key), shard: d.counter.Shard(request.Key)}
	for _, s := range append([]windows.KeyState{state}, state.Shadows...) {
		switch {
		case s.RetryAfter == 0: // the key is free, or a shadow rule admits it, and other charges may change that
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
	d.keys.Add(strings.Clone(request.Key), one) // the key may be a part of a long request
	d.used.Store(true)
}

// charged ends what is known about a key's denial: this process has charged the key, so its wait can be longer. A
// denial that was asked for before `at` is not remembered afterwards, because Redis may have decided it before the
// charge. For most keys nothing is known, and this is one look-up.
func (d *denials) charged(key string, at time.Time) {
	if !d.used.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.keys.Peek(key); ok {
		if at.Before(known.asked) {
			at = known.asked
		}
		d.keys.Add(key, &denial{plan: known.plan, cost: math.MaxInt64, asked: at})
	}
}

// certainty is how certain the denial of a request is.
type certainty int

const (
	unknown certainty = iota
	old               // it is denied, unless units came back since the marks were read
	certain
)

// find returns the denial of the request's key, for a call that arrived at that time. It is nil if no denial is
// known. mu must be held.
func (d *denials) find(request counters.Request, arrived, now time.Time) (*denial, certainty) {
	one, ok := d.keys.Get(request.Key)
	if !ok || one.plan != request.Plan || max(1, request.Cost) < one.cost || !arrived.Before(one.until) {
		return nil, unknown
	}
	p := &d.partitions[one.partition]
	switch {
	case !one.asked.After(p.since):
		return one, unknown
	case now.Sub(one.asked) < freshFor || now.Sub(p.asked) < freshFor || !p.asked.Before(arrived):
		return one, certain
	case p.asked.IsZero(): // the first reading has no older mark to compare with
		return one, unknown
	}
	return one, old
}

// lookup returns the state of the request's key if the request is denied for certain. It starts a reading of the
// marks if one is due.
func (d *denials) lookup(request counters.Request, arrived time.Time) (windows.KeyState, certainty) {
	now := d.now()
	d.mu.Lock()
	one, known := d.find(request, arrived, now)
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
	if last := one.until.Add(-time.Millisecond); now.After(last) { // the call waited: it is denied anyway
		now = last
	}
	return one.state.After(now.Sub(one.from) + time.Millisecond - 1), certain // rounded up: no wait is too long
}

// await returns a channel that is closed when the marks have been read that show whether an old denial is certain,
// and how long to wait for it at most. The channel is nil if it is not worth waiting.
func (d *denials) await(request counters.Request, arrived time.Time) (reading <-chan struct{}, atMost time.Duration) {
	now := d.now()
	d.mu.Lock()
	one, known := d.find(request, arrived, now)
	if known != old {
		d.mu.Unlock()
		if known == certain { // by a reading that has just ended
			return closed, d.maxWait
		}
		return nil, 0
	}
	l, due := &d.shards[one.shard], false
	if !l.failed {
		due = d.begin(one.shard, now)
		atMost = d.maxWait - now.Sub(l.last)
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

// closed is the channel of a reading that is over.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// begin records that a reading of a shard's marks begins now. It returns false if one is already under way. mu must
// be held.
func (d *denials) begin(shard int, now time.Time) bool {
	l := &d.shards[shard]
	if l.over != nil {
		return false
	}
	l.over, l.last = make(chan struct{}), now
	return true
}

// read reads the marks of the partitions of a shard in which denials were looked up.
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
		return // marks that are not fresh are read again
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

// changed forgets a key, unless it is blocked: an answer needs no denial then.
func (d *denials) changed(key string, how change) {
	if how == blocked {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keys.Remove(key)
	p := &d.partitions[d.counter.Partition(key)]
	if now := d.now(); p.since.Before(now) {
		p.since = now
	}
}
