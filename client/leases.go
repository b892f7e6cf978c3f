package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/lease"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// Leaser is a Checker that leases units of a hot key, which are spent without a call. HTTP is a Leaser. (direct.Redis
// leases without this: its rules say which keys.)
type Leaser interface {
	Checker
	// Lease takes, renews or ends a lease. It may not be sent again. After an error that does not wrap
	// api.ErrNotSent, no unit of the lease may be spent any more.
	Lease(ctx context.Context, req api.LeaseRequest) (api.LeaseAnswer, error)
}

// Lease implements Leaser.
func (h *HTTP) Lease(ctx context.Context, req api.LeaseRequest) (a api.LeaseAnswer, err error) {
	if err = h.ask(ctx, "POST", "/v1/leases", req, &a); err == nil {
		err = validateLease(a, req)
	}
	return transport.Decided(a, err)
}

// validateLease refuses an answer that does not fit the request. A lease has no more units than the client keeps or
// wants. Only the units that it keeps can be above a limit, if the limit was higher before.
func validateLease(a api.LeaseAnswer, req api.LeaseRequest) error {
	if err := transport.ValidateAnswer(a.CheckAnswer, req.Key); err != nil {
		return err
	}
	most := max(req.Keep, req.Want)
	for _, w := range a.Windows {
		most = min(most, max(req.Keep, w.Limit))
	}
	if a.Units < 0 || a.Units > most || a.LeaseMs < 0 || a.LeaseMs > transport.LongestMs ||
		a.Units > 0 && (a.ID == "" || len(a.Windows) == 0) {
		return transport.Lost(fmt.Errorf("a lease of %d units for %d ms, with id %s and %d windows: expected up to "+
			"%d units", a.Units, a.LeaseMs, api.Shorten(a.ID), len(a.Windows), most))
	}
	return nil
}

// leases holds the leases of a Client: which keys are asked for often, and the units of them that its Leaser granted.
type leases struct {
	*lease.List
	client *shared
	leaser Leaser
}

// useLeases makes the client lease keys, if Config.Leases says so.
func (s *shared) useLeases() error {
	if s.config.Leases == 0 {
		return nil
	}
	leaser, ok := s.checker.(Leaser)
	if !ok {
		return fmt.Errorf("client: Leases %d: %T has no leases, only client.HTTP has", s.config.Leases, s.checker)
	}
	now := time.Now
	if s.config.Now != nil {
		now = func() time.Time { return time.UnixMilli(s.config.Now()) }
	}
	s.leases = &leases{client: s, leaser: leaser}
	s.leases.List = lease.NewList(lease.Config{Source: s.leases, Keys: s.config.Leases, Remembers: true, Now: now})
	return nil
}

// leasePlan is what the last answer said about a key's rule.
type leasePlan struct{ lease, shortest time.Duration }

func (p leasePlan) LeaseTime() time.Duration      { return p.lease }
func (p leasePlan) ShortestWindow() time.Duration { return p.shortest }

// Denies implements lease.Plan. The server offers no leases of keys whose denials have to be counted.
func (leasePlan) Denies() bool { return true }

// planOf returns the plan of an answer. The shortest window is 0 if the answer has no windows.
func planOf(a *api.CheckAnswer) leasePlan {
	p := leasePlan{lease: time.Duration(a.LeaseMs) * time.Millisecond}
	for _, w := range a.Windows {
		if per := time.Duration(w.WindowMs) * time.Millisecond; per > 0 && (p.shortest == 0 || per < p.shortest) {
			p.shortest = per
		}
	}
	return p
}

// Plan implements lease.Source. The plan stays the same until the server sends a new one with a renewal.
func (l *leases) Plan(_ string, before lease.Plan) (plan lease.Plan, ends bool) { return before, false }

// Ended implements lease.Source.
func (l *leases) Ended(lease.Plan) {}

// Renew implements lease.Source. It uses the deadline and the breaker of all calls.
func (l *leases) Renew(plan lease.Plan, ask api.LeaseRequest) (api.LeaseAnswer, lease.Plan, error) {
	got, err := send(context.Background(), l.client, false, func(ctx context.Context) (api.LeaseAnswer, error) {
		return l.leaser.Lease(ctx, ask)
	})
	if err == nil {
		l.client.known.update(got.CheckAnswer)
		l.client.denials.end(ask.Key) // leased units are charged
		newer := planOf(&got.CheckAnswer)
		newer.shortest = cmp.Or(newer.shortest, plan.ShortestWindow())
		plan = newer
	}
	return got, plan, err
}

// answer decides a check of one key from its lease, and renews the lease if it has to. It returns false if the server
// must decide.
func (l *leases) answer(ctx context.Context, req *api.CheckRequest) (api.CheckAnswer, bool) {
	if l == nil || !l.Used() || req.Mode.Or(api.ModeTake) != api.ModeTake || req.Checks != nil ||
		req.Values != nil || req.Cost < 0 || api.MayRepeat(ctx) {
		return api.CheckAnswer{}, false
	}
	one, cost := l.Held(req.Key), cmp.Or(req.Cost, 1)
	if one == nil {
		return api.CheckAnswer{}, false
	}
	above := func(w api.WindowState) bool { return cost > w.Limit }
	if g := one.Grant(); g != nil && slices.ContainsFunc(g.Answer.Windows, above) {
		return api.CheckAnswer{}, false // the server refuses it
	}
	got, ok := one.Take(cost)
	if !ok {
		deadline := time.Now().Add(l.client.config.Timeout / 4) // a check must fit in afterwards
		if got, ok = one.Decide(ctx, cost, l.Now(), deadline); !ok {
			return api.CheckAnswer{}, false
		}
	}
	last := &got.Grant.Answer
	return api.CheckAnswer{Allowed: got.Allowed, Rule: last.Rule, Key: req.Key, Cost: cost, Windows: got.Windows(),
		RetryAfterMs: got.RetryAfter().Milliseconds(), Source: api.SourceLease, LeaseMs: last.LeaseMs,
		ByOperator: last.ByOperator}, true
}

// asked records an answer of the server, for a key that may be leased.
func (l *leases) asked(a *api.CheckAnswer) {
	if l == nil || a.LeaseMs <= 0 || a.Replayed {
		return
	}
	if p := planOf(a); p.shortest > 0 {
		l.Ask(a.Key, p.lease, a.Cost, p)
	}
}
