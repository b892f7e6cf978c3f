package check

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/lease"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/windows"
)

// maxLeases is the largest number of leases, and also of other keys whose rates are known.
const maxLeases = 10_000

// leases holds the leases of this process, and grants leases to clients (clientlease.go). Leased units are reserved
// in Redis. Only keys whose rule has lease are here. Safe for use by several goroutines.
type leases struct {
	*lease.List
	service *Service
	held    leaseStore

	mu       sync.Mutex
	watching bool
}

// leaseStore has the methods of reservations.Store that are about leases.
type leaseStore interface {
	RenewLease(ctx context.Context, plan *windows.Plan, ttl time.Duration, ask api.LeaseRequest) (reservations.Leased,
		error)
	ID(prefix string, requests []counters.Request) string
}

func newLeases(s *Service) *leases {
	l := &leases{service: s, held: s.held}
	l.List = lease.NewList(lease.Config{Source: l, Keys: maxLeases, Now: s.config.Now})
	return l
}

// leasePlan is the plan that a key was leased under, and what was known at that renewal.
type leasePlan struct {
	*windows.Plan // nil: the key has none
	key           string
	// rules are the rules with this plan: it is valid while they have this version. nil: it may end before
	// (windows.Rules.Lasting).
	rules   *windows.Rules
	version uint64

	shadows []windows.KeyState
	resets  int64
	answers *leaseAnswers
}

// leaseAnswers counts the answers from a lease that metrics and Activity have not received yet.
type leaseAnswers struct {
	allowed, denied tally
	resetsReadAt    time.Time // when the mark of resets was last read; under leases.mu
}

// tally counts answers, and the units of each answer beyond the first unit.
type tally struct{ answers, extraUnits atomic.Int64 }

func (t *tally) add(units int64) {
	t.answers.Add(1)
	if units > 1 {
		t.extraUnits.Add(units - 1)
	}
}

// take returns what was counted, and sets the counts to 0.
func (t *tally) take() (answers, units int64) {
	answers = t.answers.Swap(0)
	return answers, answers + t.extraUnits.Swap(0)
}

// Denies implements lease.Plan. It is false if Redis must evaluate shadow rules, or count a denial (on_deny: charge).
func (p *leasePlan) Denies() bool {
	return len(p.Shadows) == 0 && p.Live.OnDeny != windows.OnDenyCharge
}

// isCurrent reports whether the key certainly still has this plan under these rules. It does not match the key again.
func (p *leasePlan) isCurrent(rules *windows.Rules) bool {
	return p.rules == rules && p.version == rules.Version()
}

// planOf returns the plan that a key was leased under; nil without a grant.
func planOf(g *lease.Grant) *leasePlan {
	if g == nil {
		return nil
	}
	return g.Plan.(*leasePlan)
}

// match returns the plan of a key, and the version of the rules for which the key certainly has it.
func (l *leases) match(key string) *leasePlan {
	rules := l.service.config.Rules()
	plan, version, lasts := rules.Lasting(key)
	p := &leasePlan{Plan: plan, key: key, version: version}
	if lasts {
		p.rules = rules
	}
	return p
}

// Plan implements lease.Source.
func (l *leases) Plan(key string, before lease.Plan) (plan lease.Plan, ends bool) {
	p := l.match(key)
	if before, ok := before.(*leasePlan); ok {
		p.answers = before.answers
		return p, before.Plan != p.Plan
	}
	p.answers = &leaseAnswers{}
	return p, false
}

// Renew implements lease.Source.
func (l *leases) Renew(plan lease.Plan, ask api.LeaseRequest) (api.LeaseAnswer, lease.Plan, error) {
	p, now := plan.(*leasePlan), l.Now()
	if ask.ID == "" {
		ask.ID = l.newID("lease", ask.Key)
	}
	got, err := l.ask(p.Plan, lease.Reserved(p.LeaseTime()), ask)
	out := leaseAnswer(ask.ID, got)
	p.shadows, p.resets = got.State.Shadows, got.Resets
	switch {
	case err != nil || ask.Want == 0:
	case got.Units > 0:
		l.watch(p, now)
	default:
		// The denial is used until the key may be asked for again. That may be up to a millisecond later than by
		// Redis's clock.
		l.service.denials.add(counters.Request{Plan: p.Plan, Key: ask.Key, Cost: ask.Least}, got.State, now, now)
	}
	return out, p, err
}

// leaseAnswer returns the parts of Redis's answer that are the same for leases of this process and of clients.
func leaseAnswer(id string, got reservations.Leased) api.LeaseAnswer {
	out := api.LeaseAnswer{Units: got.Units, Expired: !got.Valid, NowMs: got.State.NowMs}
	if got.Units > 0 {
		out.ID = id
	}
	out.Windows, out.RetryAfterMs = got.State.Windows, got.State.RetryAfter.Milliseconds()
	return out
}

// newID makes the id of a new lease. The id begins with prefix.
func (l *leases) newID(prefix, key string) string {
	return l.held.ID(prefix+strings.ToLower(rand.Text()), []counters.Request{{Key: key}})
}

// ask renews a lease in Redis, behind the breaker of its shard.
func (l *leases) ask(plan *windows.Plan, ttl time.Duration, ask api.LeaseRequest) (got reservations.Leased, err error) {
	s := l.service
	err = s.shards[s.config.Counter.Shard(ask.Key)].execute(context.Background(), func() error {
		ctx, cancel := context.WithTimeout(context.Background(), s.config.Timeout)
		defer cancel()
		got, err = l.held.RenewLease(ctx, plan, ttl, ask)
		return err
	})
	if err == nil && got.Units > 0 {
		s.denials.charged(ask.Key, l.Now())
	}
	return got, err
}

// Ended implements lease.Source.
func (l *leases) Ended(plan lease.Plan) { l.report(plan.(*leasePlan)) }

// count counts an answer under a plan. Metrics and Activity receive it within watchResets, or when the lease ends.
func (l *leases) count(one *lease.Lease, p *leasePlan, units int64, allowed bool) {
	if allowed {
		p.answers.allowed.add(units)
	} else {
		p.answers.denied.add(units)
	}
	if one.Grant() == nil { // the lease has ended: checkResets does not report it any more
		l.report(p)
	}
}

// report reports the answers since the last report to metrics and Activity. An answer from a lease takes less than a
// microsecond, so each is observed as 0 s.
func (l *leases) report(p *leasePlan) {
	metrics, activity := l.service.config.Metrics, l.service.config.Activity
	for allowed, t := range map[bool]*tally{true: &p.answers.allowed, false: &p.answers.denied} {
		answers, units := t.take()
		if metrics != nil && p.Plan != nil { // also if it is 0: a counter that begins above 0 has no rate at first
			metrics.checks.WithLabelValues(p.Name(), "lease_"+outcomeOf(allowed)).Add(float64(answers))
		}
		if answers == 0 {
			continue
		}
		if activity != nil {
			activity.Checks(p.Name(), p.key, answers, units, allowed)
		}
		if metrics == nil {
			continue
		}
		took := metrics.latencies(p.Name()).of(allowed)
		for range answers {
			took.Observe(0)
		}
	}
}

// changed ends the lease of a key that was reset or is blocked, if there is one, so that units are asked for again. If
// units only came back, it does nothing, because the next renewal finds them.
func (l *leases) changed(key string, how change) {
	one := l.Find(key) // without a lock, as each check of a blocked key comes here
	if one == nil && how == reset {
		one = l.Held(key)
	}
	if one != nil && how != freed {
		one.GiveBack()
	}
}
