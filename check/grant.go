package check

import (
	"hash/crc32"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// grant is what the last renewal of a lease gave. It does not change.
type grant struct {
	plan *windows.Plan
	// rules have the plan, as long as no override has changed; nil where an override made it, which may end.
	rules   *windows.Rules
	changes uint64 // of overrides until then

	state     windows.KeyState // counts all units of the lease as used
	answered  time.Time
	until     time.Time // by the monotonic clock
	untilWall int64     // and by the other, in ns since 1970: it goes on while the machine sleeps
	low       int64     // at fewer units left it is renewed early
	least     int64     // what was asked for last
	// Where there is next to no room, no units are asked for until then. Checks of denyFrom units and more
	// are denied from here, if that is above 0; others ask Redis.
	pauseUntil time.Time
	denyFrom   int64
	resets     int64
	phase      int64 // of the key's renewals, in ns (align)
	// The metrics of its answers; nil without.
	allowed, refused prometheus.Counter
	took             *ruleLatencies
}

// matchFor begins a grant for a key: its plan, and for how long it is known to have it.
func (l *leases) matchFor(key string) *grant {
	rules := l.rules()
	changes, overridden := rules.OverrideChanges(), rules.Overridden(key) // in this order: either may change
	g := &grant{plan: rules.Match(key), changes: changes, phase: int64(crc32.ChecksumIEEE([]byte(key)))}
	if !overridden {
		g.rules = rules
	}
	return g
}

// answer notes what Redis said, that was asked for at a moment.
func (g *grant) answer(l *leases, got windows.Leased, asked time.Time, least int64) {
	end := asked.Add(g.plan.LeaseTime())
	g.state, g.answered, g.until, g.untilWall = got.State, l.now(), end, end.UnixNano()
	g.low, g.least, g.resets = int64(float64(got.Units)*lowAt), least, got.Resets
	if len(g.plan.Shadows) == 0 && g.plan.Live.OnDeny != windows.OnDenyCharge {
		g.denyFrom = 1 // else Redis has something to say or to count
	}
	if got.Units > 0 && g.room() < 1.0/paces {
		g.pauseUntil, g.low = g.align(asked.Add(pace(g.plan))), 0
	}
	if l.metrics != nil {
		g.took = l.metrics.latencies(g.plan.Name())
		g.allowed, g.refused = l.metrics.of(g.plan.Name(), "lease_allowed"), l.metrics.of(g.plan.Name(), "lease_denied")
	}
}

// decides tells whether a key still has the plan under these rules, as far as that is known without a look
// at its overrides.
func (g *grant) decides(rules *windows.Rules) bool {
	return g.rules == rules && g.changes == rules.OverrideChanges()
}

// stands tells whether units may be spent at a moment.
func (g *grant) stands(now time.Time) bool {
	return now.Before(g.until) && now.UnixNano() < g.untilWall
}

// windows gives where the key stands: as of the renewal, without the units that are left.
func (g *grant) windows(now time.Time, left int64) []api.WindowState {
	out := make([]api.WindowState, len(g.state.Windows))
	ms := now.Sub(g.answered).Milliseconds()
	for i, w := range g.state.Windows {
		w.Used = max(0, w.Used-left)
		w.Remaining = max(0, w.Limit-w.Used)
		if ms > 0 {
			w = w.After(ms)
		}
		out[i] = w
	}
	return out
}

// keyState is where the key stands after an answer from here.
func (g *grant) keyState(now time.Time, left int64, allowed bool) windows.KeyState {
	state := windows.KeyState{NowMs: g.state.NowMs, Shadows: g.state.Shadows}.After(now.Sub(g.answered))
	state.Windows = g.windows(now, left)
	if !allowed {
		state.RetryAfter = g.wait(now)
	}
	return state
}

// denies tells whether checks of n units are denied from here where there are none left, until pauseUntil.
func (g *grant) denies(n int64) bool {
	return g.denyFrom > 0 && n >= g.denyFrom && !g.pauseUntil.IsZero()
}

// wait is until the key is asked for again.
func (g *grant) wait(now time.Time) time.Duration {
	return max((g.pauseUntil.Sub(now) + time.Millisecond - 1).Truncate(time.Millisecond), time.Millisecond)
}

// room is the part of the limit that is free, in the fullest window.
func (g *grant) room() float64 {
	free := 1.0
	for _, w := range g.state.Windows {
		free = min(free, float64(w.Remaining)/float64(w.Limit))
	}
	return free
}

// pace is how often a key is renewed that is near its limit.
func pace(plan *windows.Plan) time.Duration {
	return min(max(plan.ShortestWindow()/paces, minPace), plan.LeaseTime())
}

// align gives the moment nearest to t at which all processes renew this key's lease,
// if it is near its limit, by Redis's clock. Some paces are a window and a bit: so what all of them charged a
// window ago is free again just then, and waits for nobody.
func (g *grant) align(t time.Time) time.Time {
	window := g.plan.ShortestWindow() + late
	step := window / max(1, (window+pace(g.plan)/2)/pace(g.plan))
	at := time.UnixMilli(g.state.NowMs).Add(t.Sub(g.answered) + step/2)
	to := t.Add(step/2 - time.Duration((at.UnixNano()-g.phase)%int64(step)))
	if g.state.NowMs == 0 || to.After(g.answered.Add(g.plan.LeaseTime()*4/5)) {
		return t
	}
	return to
}

// nextRenewal is when a grant of a moment is renewed, if it is still used.
func (g *grant) nextRenewal(now time.Time) time.Duration {
	if g.pauseUntil.After(now) {
		return g.pauseUntil.Sub(now)
	}
	return time.Duration(float64(g.horizon(g.plan)) * renewAt)
}

// horizon is for how long units are asked for: for the time of a lease, and for less the less room there is.
func (g *grant) horizon(plan *windows.Plan) time.Duration {
	span := plan.LeaseTime()
	if g == nil {
		return span
	}
	return min(max(time.Duration(float64(span)*g.room()*roomy), pace(plan)), span)
}

// pause says what becomes of checks of a key that got no units.
func (g *grant) pause(err error, got windows.Leased, now time.Time) {
	short := g.align(now.Add(pace(g.plan))).Sub(now)
	denyFrom := g.denyFrom
	g.until, g.denyFrom = now, 0
	switch retry := got.State.RetryAfter; {
	case err != nil:
		g.pauseUntil = g.answered.Add(g.plan.LeaseTime()) // a failure may take longer than a pause
	case !got.Stood: // it had expired in Redis: the next asker takes another
		g.pauseUntil = now
	case retry < 0 || retry > short: // Redis, or the memory of denials, says until when
		g.pauseUntil = now.Add(min(max(retry, short), time.Second))
	case retry == 0: // a shadow rule has no room
		g.pauseUntil = now.Add(short)
	default:
		g.pauseUntil = now.Add(short)
		if denyFrom > 0 {
			g.denyFrom = g.least
		}
	}
}
