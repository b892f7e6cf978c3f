package check

import (
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/streamcounter/streamcounter/windows"
)

const (
	// maxLeases is how many leases there are at most, and of how many other keys the rates are known; of more, those
	// asked for longest ago are forgotten.
	maxLeases = 10_000
	// hotAsks is how often a key is asked for within the time of a lease before it gets one.
	hotAsks = 10
)

// leases are those of this process (lease.go): which keys are asked for often, and what is reserved of
// them. Only keys whose rule has lease are here. Safe for use by several goroutines.
type leases struct {
	counter  leaseCounter
	rules    func() *windows.Rules
	onShard  func(shard int, ask func() error) error
	denials  *denials
	metrics  *Metrics
	activity Activity // may be nil
	now      func() time.Time
	timeout  time.Duration
	after    func(time.Duration, func()) (timer stopper) // time.AfterFunc

	// recent is what was found last, a lease at its key's hash: a hot key is found without a lock.
	recent [1024]atomic.Pointer[lease]
	seed   maphash.Seed

	mu       sync.Mutex
	held     map[string]*lease              // key → its lease
	rates    *simplelru.LRU[string, *asked] // of keys without one; hashicorp/golang-lru, as for denials
	watching bool
	closed   atomic.Bool
	running  sync.WaitGroup
	used     atomic.Bool // there was a lease once
}

// asked is how often a key was asked for, and for how many units.
type asked struct {
	since        time.Time
	times, units int64
}

// leaseCounter is what a windows.Redis has of leases.
type leaseCounter interface {
	RenewLease(ctx context.Context, plan *windows.Plan, lease windows.Lease, ask windows.Renewal) (windows.Leased,
		error)
	ReservationID(word string, requests []windows.Request) string
	Resets(ctx context.Context, partitions []int) ([]int64, error)
	Partition(key string) int
	Shard(key string) int
}

type stopper interface{ Stop() bool }

func newLeases(c Config, onShard func(shard int, ask func() error) error, denials *denials) *leases {
	l := &leases{denials: denials, counter: c.Counter, rules: c.Rules, onShard: onShard, metrics: c.Metrics,
		activity: c.Activity, now: c.Now, timeout: c.Timeout, seed: maphash.MakeSeed(), held: map[string]*lease{},
		after: func(d time.Duration, f func()) stopper { return time.AfterFunc(d, f) }}
	l.rates, _ = simplelru.NewLRU[string, *asked](maxLeases, nil)
	return l
}

// slot is where a key's lease is found without a lock.
func (l *leases) slot(key string) *atomic.Pointer[lease] {
	return &l.recent[maphash.String(l.seed, key)%uint64(len(l.recent))]
}

// find gives a key's lease without a lock, nil where it is not at hand.
func (l *leases) find(key string) *lease {
	if one := l.slot(key).Load(); one != nil && one.key == key {
		return one
	}
	return nil
}

// lookup gives the lease of a key that was asked for n units under a plan; nil where it is not asked for often
// enough to have one.
func (l *leases) lookup(key string, plan *windows.Plan, n int64) *lease {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.held[key]; one != nil {
		l.slot(key).Store(one)
		return one
	}
	rate, ok := l.rates.Get(key)
	if !ok {
		rate = &asked{}
		l.rates.Add(strings.Clone(key), rate) // it may be a part of a long request
	}
	if age := now.Sub(rate.since); age < 0 || age > plan.LeaseTime() {
		*rate = asked{since: now}
	}
	rate.times++
	rate.units += n
	if rate.times < hotAsks || len(l.held) >= maxLeases || l.closed.Load() {
		return nil
	}
	l.rates.Remove(key)
	one := &lease{of: l, key: strings.Clone(key), renewed: rate.since, wanted: rate.units}
	l.held[one.key] = one
	l.slot(key).Store(one)
	l.used.Store(true)
	return one
}

// remove forgets a lease that has ended.
func (l *leases) remove(one *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, one.key)
	l.slot(one.key).CompareAndSwap(one, nil)
}

// begin counts a renewal; false where there are to be no more.
func (l *leases) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed.Load() {
		return false
	}
	l.running.Add(1)
	return true
}

// ask renews a lease in Redis, behind the breaker of its shard.
func (l *leases) ask(plan *windows.Plan, one windows.Lease, renewal windows.Renewal) (got windows.Leased, err error) {
	err = l.onShard(l.counter.Shard(one.Key), func() error {
		ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
		defer cancel()
		got, err = l.counter.RenewLease(ctx, plan, one, renewal)
		return err
	})
	return got, err
}

// changed ends the lease of a key that was reset, if there is one: it is asked for anew. The next
// renewal finds units that came back.
func (l *leases) changed(key string, how change) {
	if how == freed {
		return
	}
	l.mu.Lock()
	one := l.held[key]
	l.mu.Unlock()
	if one != nil {
		one.giveBack()
	}
}

// close gives back what is leased. Nothing is leased afterwards.
func (l *leases) close() {
	l.mu.Lock()
	l.closed.Store(true)
	l.mu.Unlock()
	l.running.Wait()
	l.mu.Lock()
	all := slices.Collect(maps.Values(l.held))
	l.mu.Unlock()
	var ending sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, one := range all {
		slots <- struct{}{}
		ending.Go(func() {
			one.renew(0)
			<-slots
		})
	}
	ending.Wait()
}
