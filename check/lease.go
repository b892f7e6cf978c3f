package check

import (
	"sync"
	"sync/atomic"
	"time"
)

// lease is what this process has of one key: units that Redis reserved for it. They are spent
// here, without Redis, until the lease ends by this process's clock, and are then charged. What is reserved
// counts as used, and what is charged counts from then on: late, never early. It is renewed (renewal.go) until
// the key is asked for rarely, or under another plan. Safe for use by several goroutines.
type lease struct {
	of  *leases
	key string

	left   atomic.Int64 // units that may be spent
	given  tally        // answers that metrics and Activity do not have yet
	denied tally
	unmet  atomic.Int64 // units that were asked for in vain since the last renewal
	grant  atomic.Pointer[grant]

	mu       sync.Mutex    // guards what follows, and makes renewals come one at a time
	renewing chan struct{} // closed when the renewal under way is over; nil: none is
	busy     atomic.Bool   // renewing is not nil
	ending   atomic.Bool   // the next renewal ends it

	// Of renewals alone.
	ended   bool
	id      string
	units   int64     // reserved in Redis, spent ones too
	renewed time.Time // at first: since when the key is asked for, and how much
	wanted  int64
	rate    float64 // units a second that are asked for here
	timer   stopper

	checked time.Time // when the mark of resets was last read; under of.mu
}

// tally counts answers, and the units beyond one that each was for.
type tally struct{ answers, more atomic.Int64 }

func (t *tally) add(units int64) {
	t.answers.Add(1)
	if units > 1 {
		t.more.Add(units - 1)
	}
}

// take gives what was counted, and counts anew.
func (t *tally) take() (answers, units int64) {
	answers = t.answers.Swap(0)
	return answers, answers + t.more.Swap(0)
}

// spend takes units, if there are as many, and gives how many are left then.
func (l *lease) spend(n int64) (left int64, ok bool) {
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

// take answers for n units from memory, under a grant, nil where none stands; false where it cannot. The clock is read
// after the units are taken: a process that was stopped in between finds the lease at its end.
func (l *lease) take(n int64) (g *grant, now time.Time, left int64, allowed, ok bool) {
	if g = l.grant.Load(); g == nil {
		return nil, now, 0, false, false
	}
	left, allowed = l.spend(n)
	g, now = l.grant.Load(), l.of.now()
	switch {
	case g == nil: // it has ended since, and these units are charged
		return nil, now, 0, false, false
	case allowed && !g.stands(now):
		return nil, now, 0, false, false // these units are charged, and nobody has them
	case allowed:
		if left < g.low && !l.busy.Load() {
			l.start(0)
		}
		return g, now, left, true, true
	case g.denies(n) && now.Before(g.pauseUntil):
		l.unmet.Add(n)
		return g, now, left, false, true
	}
	return g, now, left, false, false
}

// count counts an answer under a grant. Metrics and Activity have it within watchResets, or when it ends.
func (l *lease) count(g *grant, units int64, allowed bool) {
	if allowed {
		l.given.add(units)
	} else {
		l.denied.add(units)
	}
	if l.grant.Load() == nil { // nobody else does it any more
		l.report(g)
	}
}

// report tells metrics and Activity of the answers since the last time. It takes less than a microsecond to
// answer, so each is observed as 0 s.
func (l *lease) report(g *grant) {
	for _, allowed := range []bool{true, false} {
		t := &l.denied
		if allowed {
			t = &l.given
		}
		answers, units := t.take()
		if answers == 0 {
			continue
		}
		if l.of.activity != nil {
			l.of.activity.Checks(g.plan.Name(), l.key, answers, units, allowed)
		}
		if g.took == nil {
			continue
		}
		counter, took := g.refused, g.took.denied
		if allowed {
			counter, took = g.allowed, g.took.allowed
		}
		counter.Add(float64(answers))
		for range answers {
			took.Observe(0)
		}
	}
}
