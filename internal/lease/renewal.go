package lease

import (
	"errors"
	"math"
	"time"

	"github.com/streamcounter/streamcounter/api"
)

// How a lease is renewed.
const (
	// renewAt is the part of its time after which a lease is renewed. lowAt is the part of its units that is left
	// when it is renewed early.
	renewAt, lowAt = 0.8, 0.15
	// spare is the factor by which more units are requested than the local rate needs, if there is room.
	spare = 1.25
	// roomy: if a twelfth of the limit or more is free, a lease lasts its whole time. If less is free, it is shorter,
	// down to the shortest window divided by paces.
	roomy = 12
	paces = 26
	// late is how much later a renewal comes than the units that it must find free (Grant.align).
	late = 2 * time.Millisecond

	minPace = 5 * time.Millisecond
	// Units are reserved in the shared count for a quarter (1/grace) longer than they may be spent here. So units are
	// not charged there and still spent here, even if the clocks run at different rates.
	grace = 4
)

// MinTime is how long a lease lasts at least, and MaxUnits is how many units it has at most.
const (
	MinTime  = 10 * time.Millisecond
	MaxUnits = 1_000_000_000
)

// Reserved returns how long the units of a lease are reserved if they may be spent for span.
func Reserved(span time.Duration) time.Duration {
	span = max(span, MinTime)
	return span + span/grace
}

// Start renews the lease in another goroutine, for a caller of n units, if no renewal is under way. It returns a
// channel that is closed when the renewal is over.
func (l *Lease) Start(n int64) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewing != nil {
		return l.renewing
	}
	over := make(chan struct{})
	if !l.of.begin() {
		close(over)
		return over
	}
	l.renewing = over
	l.busy.Store(true)
	go func() {
		defer l.of.running.Done()
		defer close(over)
		for l.renew(n); !l.finish(); l.renew(0) {
		}
	}()
	return over
}

// finish ends a renewal. It returns false if the lease must end, and has not ended yet. A lease that has ended is never
// renewed.
func (l *Lease) finish() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return true
	}
	if l.ending.Load() {
		return false
	}
	l.renewing = nil
	l.busy.Store(false)
	return true
}

// renew charges what was used and takes what is wanted next, in one call. n is how many units a caller waits for, 0
// if the lease's time is nearly over.
func (l *Lease) renew(n int64) {
	now, g, before := l.of.Now(), l.grant.Load(), l.first
	if g != nil {
		before = g.Plan
	}
	plan, ends := l.of.Source.Plan(l.key, before)
	want, least := l.want(plan, ends, g, n, now)
	if l.timer != nil {
		l.timer.Stop()
	}
	valid := g != nil && g.IsValid(now)
	had, keep := l.keep(want, valid)
	if l.units == 0 && want == 0 {
		l.end(g)
		return
	}
	if l.units == 0 {
		l.id = ""
	}
	got, newer, err := l.of.Source.Renew(plan, api.LeaseRequest{Key: l.key, ID: l.id, Had: l.units,
		Used: l.units - had, Keep: keep, Want: want, Least: least})
	if errors.Is(err, api.ErrNotSent) && valid && want > 0 {
		l.left.Add(had - keep)
		l.timer = l.of.After(g.until.Sub(now), l.timeIsUp)
		return
	}
	if err == nil {
		plan = newer
	}
	l.id, l.units = got.ID, got.Units
	if want == 0 || plan.LeaseTime() == 0 { // the key may have no plan any more
		l.left.Store(0)
		l.end(g)
		return
	}
	next := newGrant(l.of, l.key, plan, got, now, least)
	if err != nil || got.Units == 0 {
		l.left.Store(0)
		l.units = 0
		next.pause(err, now, l.of.Remembers)
		l.grant.Store(next)
		l.timer = l.of.After(next.pauseUntil.Sub(now)+plan.LeaseTime(), l.timeIsUp)
		return
	}
	l.grant.Store(next) // before the units: those that were kept last as long
	l.left.Add(got.Units - keep)
	l.timer = l.of.After(next.nextRenewal(now), l.timeIsUp)
}

// timeIsUp renews the lease if its key is still asked for often, and ends it otherwise.
func (l *Lease) timeIsUp() { l.Start(0) }

// GiveBack ends the lease.
func (l *Lease) GiveBack() {
	l.ending.Store(true)
	l.Start(0)
}

// keep takes out the units that are given back: all of them if the grant is not valid any more. It returns how many
// were left and how many are kept.
func (l *Lease) keep(want int64, valid bool) (left, keep int64) {
	for {
		left = l.left.Load()
		keep = left
		if !valid {
			keep = 0
		} else if want == 0 || want < left/2 { // fewer units are not worth a change of the mark (counters/freed.go)
			keep = min(left, want)
		}
		if l.left.CompareAndSwap(left, keep) {
			return left, keep
		}
	}
}

// end forgets the lease: the key must be asked for often again.
func (l *Lease) end(g *Grant) {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.grant.Store(nil)
	l.of.remove(l)
	if g != nil {
		l.of.Source.Ended(g.Plan)
	}
}

// want returns how many units the lease needs by the local rate, 0 if it must end, and the cost that they are for.
func (l *Lease) want(plan Plan, ends bool, g *Grant, n int64, now time.Time) (want, least int64) {
	least = max(n, 1)
	demand := l.units - l.left.Load() + l.unmet.Swap(0)
	passed, span := max(now.Sub(l.renewed), MinTime), plan.LeaseTime()
	switch {
	case g == nil: // it is new
		demand = l.wanted
	case n == 0:
		least = g.least
	}
	if demand > 0 {
		l.renewed = now // without demand, the time since the last demand continues
	}
	if ending := l.ending.Swap(false); ending || ends || span == 0 || l.of.closed.Load() {
		return 0, least
	}
	rate := float64(demand) / passed.Seconds()
	if rate < l.rate { // the rate falls slowly: in proportion to the time that has passed
		rate += (l.rate - rate) * max(1-passed.Seconds()/(renewAt*span.Seconds()), 0)
	}
	l.rate = rate
	if n == 0 && rate*span.Seconds() < float64(4*least) {
		return 0, least // it is asked for rarely now
	}
	if g == nil || g.room() >= 1.0/roomy {
		rate *= spare
	}
	want = min(int64(math.Ceil(rate*g.horizon(plan).Seconds())), MaxUnits)
	return max(want+least-1, least) / least * least, least
}
