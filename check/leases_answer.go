package check

import (
	"cmp"
	"context"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/lease"
	"github.com/streamcounter/streamcounter/windows"
)

// Close gives back the units that this process has leased for hot keys: used units are charged, the rest becomes
// free. Call it when no more checks come. Checks that come later are decided in Redis.
func (s *Service) Close() { s.leases.Close() }

// decide decides a call of one key from this process's lease, and takes or renews the lease if the key is asked for
// often. If it returns false, the call is passed on.
func (l *leases) decide(ctx context.Context, c *call, arrived, deadline time.Time) (decision, bool) {
	if len(c.byKey) != 1 || c.never {
		return decision{}, false
	}
	a := c.byKey[0]
	if a.Plan.LeaseTime() == 0 {
		if one := l.Find(a.Key); one != nil {
			one.GiveBack() // its rule had lease before
		}
		return decision{}, false
	}
	if a.Cost < 1 || a.Mode != api.ModeTake || api.MayRepeat(ctx) {
		return decision{}, false
	}
	one := l.Ask(a.Key, a.Plan.LeaseTime(), a.Cost, nil)
	if one == nil {
		return decision{}, false
	}
	if p := planOf(one.Grant()); p != nil && p.Plan != a.Plan { // the rules changed, or an operator's limits
		one.GiveBack()
		return decision{}, false
	}
	got, ok := one.Decide(ctx, a.Cost, arrived, deadline)
	if !ok || planOf(got.Grant).Plan != a.Plan {
		return decision{}, false
	}
	return decision{Verdict: counters.Verdict{Allowed: got.Allowed, Atomic: true,
		Items: []windows.KeyState{leasedState(got)}}, source: api.SourceLease, outcome: "lease_"}, true
}

// leasedState returns the state of the key after an answer from its lease.
func leasedState(a lease.Answer) windows.KeyState {
	g := a.Grant
	state := windows.KeyState{NowMs: g.Answer.NowMs, Shadows: planOf(g).shadows}.After(g.Age(a.Now))
	state.Windows, state.RetryAfter = a.Windows(), a.RetryAfter()
	return state
}

// answerHot answers a plain check of one key from its lease, if the lease alone can decide it. It does the same as
// decide without what other calls need: most answers for a hot key come from here.
func (s *Service) answerHot(ctx context.Context, req *api.CheckRequest) (api.CheckAnswer, bool) {
	if !s.leases.Used() {
		return api.CheckAnswer{}, false
	}
	one := s.leases.Find(req.Key)
	if one == nil {
		return api.CheckAnswer{}, false
	}
	p, cost := planOf(one.Grant()), cmp.Or(req.Cost, 1)
	if p == nil || !p.isCurrent(s.config.Rules()) || len(p.Shadows) > 0 || cost < 1 ||
		cost > p.Live.Smallest() || req.Mode.Or(api.ModeTake) != api.ModeTake || req.Checks != nil ||
		api.MayRepeat(ctx) {
		return api.CheckAnswer{}, false
	}
	got, ok := one.Take(cost)
	if !ok || planOf(got.Grant).Plan != p.Plan {
		return api.CheckAnswer{}, false
	}
	s.leases.count(one, planOf(got.Grant), cost, got.Allowed)
	answer := api.CheckAnswer{Allowed: got.Allowed, Rule: p.Live.Name, Key: req.Key, Cost: cost,
		Windows: got.Windows(), Source: api.SourceLease, RetryAfterMs: got.RetryAfter().Milliseconds()}
	answer.LeaseMs = clientLeaseTime(p.Plan).Milliseconds()
	return answer, true
}
