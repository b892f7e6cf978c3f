package check

import (
	"cmp"
	"context"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// Close gives back what this process has leased of hot keys: what was used is charged, the rest is free. Call
// it when no more checks come; those that come all the same ask Redis.
func (s *Service) Close() { s.leases.close() }

// answer decides a call of one key from this process's lease, and takes or renews the lease where the key
// is asked for often. Where it gives false Redis decides. It waits for the renewal until the deadline, if there
// is one. A renewal that was answered since the call came decides it, however late the caller goes on, if it was under
// way and its pause was not over when the call came.
func (l *leases) answer(ctx context.Context, c *call, came, deadline time.Time) (decision, bool) {
	if len(c.asks) != 1 || c.never {
		return decision{}, false
	}
	a := c.asks[0]
	if a.Plan.LeaseTime() == 0 {
		if one := l.find(a.Key); one != nil {
			one.giveBack() // its rule had lease
		}
		return decision{}, false
	}
	if a.Cost < 1 || a.Mode != api.ModeTake || a.Memory != nil {
		return decision{}, false
	}
	for range 2 {
		one := l.lookup(a.Key, a.Plan, a.Cost)
		if one == nil {
			return decision{}, false
		}
		if g := one.grant.Load(); g != nil && g.plan != a.Plan { // other rules, or an override
			one.giveBack()
			return decision{}, false
		}
		g, now, left, allowed, ok := one.take(a.Cost)
		switch {
		case g != nil && g.plan != a.Plan:
			return decision{}, false
		case ok:
			return leasedDecision(g.keyState(now, left, allowed), allowed), true
		case g != nil && g.denies(a.Cost) && g.answered.After(came) && came.Before(g.pauseUntil):
			one.unmet.Add(a.Cost)
			return leasedDecision(g.keyState(now, left, false), false), true
		case g != nil && now.Before(g.pauseUntil):
			one.unmet.Add(a.Cost) // asked for, at least
			return decision{}, false
		}
		over := one.start(a.Cost)
		if deadline.IsZero() || !waitFor(ctx, over, deadline) {
			return decision{}, false
		}
	}
	return decision{}, false
}

// waitFor is false where ctx or the deadline ends first.
func waitFor(ctx context.Context, over <-chan struct{}, deadline time.Time) bool {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-over:
		return true
	case <-ctx.Done():
	case <-timer.C:
	}
	return false
}

func leasedDecision(state windows.KeyState, allowed bool) decision {
	return decision{Verdict: windows.Verdict{Allowed: allowed, Atomic: true, Items: []windows.KeyState{state}},
		source: api.SourceLease, outcome: "lease_"}
}

// leased answers a plain check of one key from its lease, where nothing but the lease has to be asked. It is
// answer without what other calls need: most answers of a hot key come from here.
func (s *Service) leased(ctx context.Context, req *api.CheckRequest) (api.CheckAnswer, bool) {
	if !s.leases.used.Load() {
		return api.CheckAnswer{}, false
	}
	one := s.leases.find(req.Key)
	if one == nil {
		return api.CheckAnswer{}, false
	}
	g, cost := one.grant.Load(), cmp.Or(req.Cost, 1)
	if g == nil || !g.decides(s.config.Rules()) || len(g.plan.Shadows) > 0 || cost < 1 ||
		cost > g.plan.Live.Smallest() || req.Mode.Or(api.ModeTake) != api.ModeTake || req.Checks != nil ||
		api.Repeatable(ctx) {
		return api.CheckAnswer{}, false
	}
	got, now, left, allowed, ok := one.take(cost)
	if !ok || got.plan != g.plan {
		return api.CheckAnswer{}, false
	}
	out := api.CheckAnswer{Allowed: allowed, Rule: got.plan.Live.Name, Key: req.Key, Cost: cost,
		Windows: got.windows(now, left), Source: api.SourceLease}
	if !allowed {
		out.RetryAfterMs = got.wait(now).Milliseconds()
	}
	one.count(got, cost, allowed)
	return out, true
}
