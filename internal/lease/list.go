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

// Source has the count, and reserves units of it.
type Source interface {
	// Plan gives the plan that a key has now; before is that of its last grant, or nil. ends: it is another one, so
	// the lease is to end.
	Plan(key string, before Plan) (plan Plan, ends bool)
	// Renew takes, renews or ends a lease (Want is 0) in one step, and gives the plan that it now has. It is not
	// sent twice: after an error that does not wrap api.ErrNotSent the lease is not used any more.
	Renew(plan Plan, ask api.LeaseRequest) (api.LeaseAnswer, Plan, error)
	// Ended hears of the plan of a lease that has ended.
	Ended(plan Plan)
}

// Plan is how a key is counted, as far as leases go by it.
type Plan interface {
	LeaseTime() time.Duration // how long a lease lasts; 0: there is none
	ShortestWindow() time.Duration
	// Denies: a denial from memory has to be counted nowhere.
	Denies() bool
}

// Stopper is a timer.
type Stopper interface{ Stop() bool }

// Config of a List.
type Config struct {
	Source Source
	// Keys is how many leases there are at most, and of how many other keys the rates are known; of more, those
	// asked for longest ago are forgotten.
	Keys int
	// Remembers: denials from memory last as long as the shared count says, at most the time of a lease. Else
	// somebody besides remembers them, and knows of resets.
	Remembers bool
	Now       func() time.Time
}

// List are the leases of a process: which keys are asked for often, and what is reserved of
// them. Safe for use by several goroutines.
type List struct {
	Config
	// After is time.AfterFunc, or that of a test.
	After func(time.Duration, func()) Stopper

	// recent is what was found last, a lease at its key's hash: a hot key is found without a lock.
	recent [1024]atomic.Pointer[Lease]
	seed   maphash.Seed

	mu      sync.Mutex
	held    map[string]*Lease              // key → its lease
	rates   *simplelru.LRU[string, *asked] // of keys without one; hashicorp/golang-lru is small and bounded
	closed  atomic.Bool
	running sync.WaitGroup
	used    atomic.Bool // there was a lease once
}

// asked is how often a key was asked for, and for how many units.
type asked struct {
	since        time.Time
	times, units int64
}

// NewList makes an empty one.
func NewList(c Config) *List {
	l := &List{Config: c, seed: maphash.MakeSeed(), held: map[string]*Lease{},
		After: func(d time.Duration, f func()) Stopper { return time.AfterFunc(d, f) }}
	l.rates, _ = simplelru.NewLRU[string, *asked](cmp.Or(c.Keys, 1), nil)
	return l
}

// Used tells whether there was a lease once.
func (l *List) Used() bool { return l.used.Load() }

// slot is where a key's lease is found without a lock.
func (l *List) slot(key string) *atomic.Pointer[Lease] {
	return &l.recent[maphash.String(l.seed, key)%uint64(len(l.recent))]
}

// Find gives a key's lease without a lock, nil where it is not at hand.
func (l *List) Find(key string) *Lease {
	if one := l.slot(key).Load(); one != nil && one.key == key {
		return one
	}
	return nil
}

// Held gives a key's lease, nil where it has none.
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

// Ask notes that a key was asked for n units, and gives its lease; nil where it is not asked for often
// enough to have one. span is how long a lease would last; first is given to Source.Plan at first.
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
		l.rates.Add(strings.Clone(key), rate) // it may be a part of a long request
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

// Len is how many leases there are.
func (l *List) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held)
}

// All gives the leases, in no order.
func (l *List) All() []*Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.held))
}

// begin counts a renewal; false where there are to be no more.
func (l *List) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed.Load() {
		return false
	}
	l.running.Add(1)
	return true
}

// Closed tells whether nothing is leased any more.
func (l *List) Closed() bool { return l.closed.Load() }

// Stop begins no renewal any more: what is leased is charged at its end.
func (l *List) Stop() {
	l.mu.Lock()
	l.closed.Store(true)
	l.mu.Unlock()
}

// Wait waits for the renewals that are under way.
func (l *List) Wait() { l.running.Wait() }

// Close gives back what is leased. Nothing is leased afterwards.
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
