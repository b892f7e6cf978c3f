// Package lease spends units of hot keys from memory. A process reserves units in advance in the shared count (of
// Redis or a server), and answers checks from them alone. When it takes the next units, those that it spent are
// charged. Begin with Lease, then renewal.go.
package lease

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamcounter/streamcounter/internal/pause"
)

// Lease has the units of one key that are reserved for this process. They are spent here until the lease ends by this
// process's clock, and are then charged. Reserved units count as used. Charged units count from the time of the
// charge: late, never early. A lease is renewed (renewal.go) until the key is asked for rarely, or has another plan.
// Safe for use by several goroutines.
type Lease struct {
	of    *List
	key   string
	first Plan // before there is a grant; may be nil

	left  atomic.Int64 // units that may be spent
	unmet atomic.Int64 // units that checks have not got since the last renewal
	grant atomic.Pointer[Grant]

	mu       sync.Mutex    // guards what follows, and makes renewals come one at a time
	renewing chan struct{} // closed when the renewal under way is over; nil: none is
	busy     atomic.Bool   // renewing is not nil
	ending   atomic.Bool   // the next renewal ends it

	// Only renewals use these.
	ended   bool
	id      string
	units   int64     // reserved units, including spent ones
	renewed time.Time // the last renewal with demand; before the first renewal: the first check of the key
	wanted  int64     // units that checks have asked for since then, before the first renewal
	rate    float64   // units a second that are asked for here
	timer   Stopper
}

// Key returns the key of the lease.
func (l *Lease) Key() string { return l.key }

// Grant returns the result of the last renewal; nil before the first, and after the end.
func (l *Lease) Grant() *Grant { return l.grant.Load() }

// Left returns how many units may be spent.
func (l *Lease) Left() int64 { return l.left.Load() }

// spend takes n units, if there are as many, and returns how many are left then.
func (l *Lease) spend(n int64) (left int64, ok bool) {
	for {
		left = l.left.Load()
		if left < n {
			return left, false
		}
		if l.left.CompareAndSwap(left, left-n) {
			return left - n, true
		}
	}
}

// Answer is an answer from memory under a grant, with its time and the units that were left then.
type Answer struct {
	Grant   *Grant // nil if there is none
	Now     time.Time
	Left    int64
	Allowed bool
}

// Take answers for n units from memory. It returns false if it cannot. The clock is read after the units are taken,
// so a process that was stopped in between sees that the lease has ended.
func (l *Lease) Take(n int64) (a Answer, ok bool) {
	g := l.grant.Load()
	if g == nil {
		return a, false
	}
	left, allowed := l.spend(n)
	g, now := l.grant.Load(), l.of.Now()
	a = Answer{Grant: g, Now: now, Left: left}
	switch {
	case g == nil: // the lease has ended since, and these units are charged
		return Answer{}, false
	case allowed && !g.IsValid(now):
		return Answer{}, false // these units are charged, but nobody got them
	case allowed:
		if left < g.low && !l.busy.Load() {
			l.Start(0)
		}
		a.Allowed = true
		return a, true
	case g.denies(n) && now.Before(g.pauseUntil):
		l.unmet.Add(n)
		return a, true
	}
	return a, false
}

// Decide is like Take, but renews the lease if it has too few units, and waits for the renewal until the deadline, if
// there is one. If a renewal denies the call, and was answered after the call came (at `came`), the denial is valid
// even if this goroutine sees it only after the pause.
func (l *Lease) Decide(ctx context.Context, n int64, came, deadline time.Time) (Answer, bool) {
	for range 2 {
		a, ok := l.Take(n)
		g := a.Grant
		switch {
		case ok:
			return a, true
		case g != nil && g.denies(n) && g.answered.After(came) && came.Before(g.pauseUntil):
			l.unmet.Add(n)
			return a, true
		case g != nil && a.Now.Before(g.pauseUntil):
			l.unmet.Add(n) // it counts as demand
			return a, false
		}
		over := l.Start(n)
		if deadline.IsZero() || !pause.Closed(ctx, over, deadline) {
			return a, false
		}
	}
	return Answer{}, false
}
