package lease

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/streamcounter/streamcounter/api"
)

// HotAsks is how often a key is asked for within the time of a lease before it gets one.
const HotAsks = 10

// Source has the shared count, and reserves units in it.
type Source interface {
	// Plan returns the plan that a key has now. before is the plan of its last grant, or nil. ends is true if the
	// plan is another one, so that the lease must end.
	Plan(key string, before Plan) (plan Plan, ends bool)
	// Renew takes, renews or ends a lease (Want is 0) in one step, and returns the plan that the key now has. It is
	// not sent twice. After an error that does not wrap api.ErrNotSent, the lease is not used any more.
	Renew(plan Plan, ask api.LeaseRequest) (api.LeaseAnswer, Plan, error)
	// Ended is called with the plan of a lease that has ended.
	Ended(plan Plan)
}

// Plan is what leases need to know about how a key is counted.
type Plan interface {
	LeaseTime() time.Duration // how long a lease lasts; 0: there is none
	ShortestWindow() time.Duration
	// Denies reports whether a key may be denied from memory: such a denial need not be counted.
	Denies() bool
}

// Stopper is a timer.
type Stopper interface{ Stop() bool }

// Config of a List.
type Config struct {
	Source Source
	// Keys is the largest number of leases, and also of other keys whose rates are known. If there are more of those
	// other keys, the ones that were asked for longest ago are forgotten.
	Keys int
	// Remembers: denials from memory last as long as the shared count says, at most the time of a lease. Otherwise
	// another part remembers denials, and notices resets.
	Remembers bool
	Now       func() time.Time
}

// List has the leases of a process: which keys are asked for often, and what is reserved of them. Safe for use by
// several goroutines.
type List struct {
	Config
	// After is time.AfterFunc, or that of a test.
	After func(time.Duration, func()) Stopper

	// recent has the leases that were found last, each at its key's hash, so that a hot key is found without a lock.
	recent [1024]atomic.Pointer[Lease]
	seed   maphash.Seed

	mu      sync.Mutex
	held    map[string]*Lease              // key → its lease
	rates   *simplelru.LRU[string, *asked] // of keys without a lease; hashicorp/golang-lru is small and bounded
	closed  atomic.Bool
	running sync.WaitGroup
	used    atomic.Bool // there was a lease once
}

// asked is how often a key was asked for, and for how many units.
type asked struct {
	since        time.Time
	times, units int64
}

// NewList makes an empty List.
func NewList(c Config) *List {
	l := &List{Config: c, seed: maphash.MakeSeed(), held: map[string]*Lease{},
		After: func(d time.Duration, f func()) Stopper { return time.AfterFunc(d, f) }}
	l.rates, _ = simplelru.NewLRU[string, *asked](cmp.Or(c.Keys, 1), nil)
	return l
}

// Used reports whether there was ever a lease.
func (l *List) Used() bool { return l.used.Load() }

// slot returns where a key's lease is found without a lock.
func (l *List) slot(key string) *atomic.Pointer[Lease] {
	return &l.recent[maphash.String(l.seed, key)%uint64(len(l.recent))]
}

// Find returns a key's lease without a lock, nil if it is not in recent.
func (l *List) Find(key string) *Lease {
	if one := l.slot(key).Load(); one != nil && one.key == key {
		return one
	}
	return nil
}

// Held returns a key's lease, nil if it has none.
func (l *List) Held(key string) *Lease {
	if one := l.Find(key); one != nil || !l.Used() {
		return one
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lookup(key)
}

// lookup is Held under the lock.
func (l *List) lookup(key string) *Lease {
	one := l.held[key]
	if one != nil {
		l.slot(key).Store(one)
	}
	return one
}

// Ask records that a key was asked for n units, and returns its lease; nil if it is not asked for often enough to
// have one. span is how long a lease would last. first is passed to the first call of Source.Plan.
func (l *List) Ask(key string, span time.Duration, n int64, first Plan) *Lease {
	now := l.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.lookup(key); one != nil {
		return one
	}
	rate, ok := l.rates.Get(key)
	if !ok {
		rate = &asked{}
		l.rates.Add(strings.Clone(key), rate) // otherwise the key may keep a long request in memory
	}
	if age := now.Sub(rate.since); age < 0 || age > span {
		*rate = asked{since: now}
	}
	rate.times++
	rate.units += n
	if rate.times < HotAsks || len(l.held) >= l.Keys || l.closed.Load() {
		return nil
	}
	l.rates.Remove(key)
	one := &Lease{of: l, key: strings.Clone(key), first: first, renewed: rate.since, wanted: rate.units}
	l.held[one.key] = one
	l.slot(key).Store(one)
	l.used.Store(true)
	return one
}

// remove forgets a lease that has ended.
func (l *List) remove(one *Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, one.key)
	l.slot(one.key).CompareAndSwap(one, nil)
}

// Len returns how many leases there are.
func (l *List) Len() int { return len(l.All()) }

// All returns the leases, in no order.
func (l *List) All() []*Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.held))
}

// begin counts a renewal. It returns false if no more may begin.
func (l *List) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed.Load() {
		return false
	}
	l.running.Add(1)
	return true
}

// Closed reports whether nothing is leased any more.
func (l *List) Closed() bool { return l.closed.Load() }

// Stop lets no renewal begin any more: what is leased is charged at the end of its lease.
func (l *List) Stop() {
	l.mu.Lock()
	l.closed.Store(true)
	l.mu.Unlock()
}

// Wait waits for the renewals that are under way.
func (l *List) Wait() { l.running.Wait() }

// Close gives leased units back. Nothing is leased afterwards.
func (l *List) Close() {
	l.Stop()
	l.Wait()
	var ending sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, one := range l.All() {
		slots <- struct{}{}
		ending.Go(func() {
			one.renew(0)
			<-slots
		})
	}
	ending.Wait()
}
