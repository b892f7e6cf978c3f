package lease

import (
	"hash/crc32"
	"time"

	"github.com/streamcounter/streamcounter/api"
)

// Grant is the result of the last renewal of a lease. It does not change.
type Grant struct {
	Plan   Plan
	Answer api.LeaseAnswer // its windows count all units of the lease as used

	answered  time.Time
	until     time.Time // by the monotonic clock
	untilWall int64     // the same by the wall clock, in ns since 1970, which goes on while the machine is suspended
	low       int64     // with fewer units left, the lease is renewed early
	least     int64     // Least of the last request
	// If almost no units are free, none are requested until pauseUntil. If denyFrom is above 0, checks of denyFrom
	// units and more are denied from memory. Other checks go to the shared count.
	pauseUntil time.Time
	denyFrom   int64
	freeAt     time.Time // when least units are free, if that is after pauseUntil
	phase      int64     // of the key's renewals, in ns (align)
}

// newGrant returns the grant of an answer to a request that was sent at `sent`.
func newGrant(l *List, key string, plan Plan, got api.LeaseAnswer, sent time.Time, least int64) *Grant {
	end := sent.Add(plan.LeaseTime())
	g := &Grant{Plan: plan, Answer: got, answered: l.Now(), until: end, untilWall: end.UnixNano(),
		low: int64(float64(got.Units) * lowAt), least: least, phase: int64(crc32.ChecksumIEEE([]byte(key)))}
	if plan.Denies() {
		g.denyFrom = 1
	}
	if got.Units > 0 && g.room() < 1.0/paces {
		g.pauseUntil, g.low = g.align(sent.Add(pace(plan))), 0
	}
	return g
}

// IsValid reports whether units may be spent at a moment.
func (g *Grant) IsValid(now time.Time) bool {
	return now.Before(g.until) && now.UnixNano() < g.untilWall
}

// Age returns how long ago it was answered.
func (g *Grant) Age(now time.Time) time.Duration { return now.Sub(g.answered) }

// Windows returns the state of the key at an answer: that of the renewal, without the units that are left.
func (a Answer) Windows() []api.WindowState {
	list := a.Grant.Answer.Windows
	out := make([]api.WindowState, len(list))
	ms := a.Grant.Age(a.Now).Milliseconds()
	for i, w := range list {
		w.Used = max(0, w.Used-a.Left)
		w.Remaining = max(0, w.Limit-w.Used)
		if ms > 0 {
			w = w.After(ms)
		}
		out[i] = w
	}
	return out
}

// RetryAfter returns the time until units of the key are requested again, or until they are free if that is later. It
// is 0 if the answer is not a denial.
func (a Answer) RetryAfter() time.Duration {
	if a.Allowed {
		return 0
	}
	at := a.Grant.pauseUntil
	if a.Grant.freeAt.After(at) {
		at = a.Grant.freeAt
	}
	return max((at.Sub(a.Now) + time.Millisecond - 1).Truncate(time.Millisecond), time.Millisecond)
}

// denies reports whether checks of n units are denied from memory until pauseUntil, if no units are left.
func (g *Grant) denies(n int64) bool {
	return g.denyFrom > 0 && n >= g.denyFrom && !g.pauseUntil.IsZero()
}

// room returns the part of the limit that is free, in the fullest window.
func (g *Grant) room() float64 {
	free := 1.0
	for _, w := range g.Answer.Windows {
		free = min(free, float64(w.Remaining)/float64(w.Limit))
	}
	return free
}

// pace returns the time between renewals of a key that is near its limit.
func pace(plan Plan) time.Duration {
	return min(max(plan.ShortestWindow()/paces, minPace), plan.LeaseTime())
}

// align returns the moment nearest to t, by Redis's clock, at which all processes renew this key's lease if it is
// near its limit. A whole number of paces is a little longer than a window. So what all processes charged a window
// ago has just become free at that moment, and is taken at once.
func (g *Grant) align(t time.Time) time.Time {
	window := g.Plan.ShortestWindow() + late
	step := window / max(1, (window+pace(g.Plan)/2)/pace(g.Plan))
	at := time.UnixMilli(g.Answer.NowMs).Add(t.Sub(g.answered) + step/2)
	to := t.Add(step/2 - time.Duration((at.UnixNano()-g.phase)%int64(step)))
	if g.Answer.NowMs == 0 || to.After(g.answered.Add(g.Plan.LeaseTime()*4/5)) {
		return t
	}
	return to
}

// nextRenewal returns in how long a grant is renewed, if it is still used.
func (g *Grant) nextRenewal(now time.Time) time.Duration {
	if g.pauseUntil.After(now) {
		return g.pauseUntil.Sub(now)
	}
	return time.Duration(float64(g.horizon(g.Plan)) * renewAt)
}

// horizon returns for which time units are requested: the time of a lease, or less if few units are free.
func (g *Grant) horizon(plan Plan) time.Duration {
	span := plan.LeaseTime()
	if g == nil {
		return span
	}
	return min(max(time.Duration(float64(span)*g.room()*roomy), pace(plan)), span)
}

// pause sets what happens to checks of a key that got no units. remembers is Config.Remembers.
func (g *Grant) pause(err error, now time.Time, remembers bool) {
	short := g.align(now.Add(pace(g.Plan))).Sub(now)
	denyFrom := g.denyFrom
	g.until, g.denyFrom = now, 0
	switch retry := time.Duration(g.Answer.RetryAfterMs) * time.Millisecond; {
	case err != nil:
		g.pauseUntil = g.answered.Add(g.Plan.LeaseTime()) // a failure may take longer than a pause
	case g.Answer.Expired: // the next caller takes another lease
		g.pauseUntil = now
	case retry > short && remembers: // until a renewal has to look for a reset
		g.pauseUntil, g.freeAt = now.Add(min(retry, g.Plan.LeaseTime())), g.answered.Add(retry)
		if denyFrom > 0 {
			g.denyFrom = g.least
		}
	case retry < 0 || retry > short: // the shared count, or the memory of denials, says until when
		g.pauseUntil = now.Add(min(max(retry, short), time.Second))
	default:
		g.pauseUntil = now.Add(short)
		if denyFrom > 0 && retry > 0 { // at 0 a shadow rule has no room
			g.denyFrom = g.least
		}
	}
}
