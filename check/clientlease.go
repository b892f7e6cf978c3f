package check

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/lease"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/windows"
)

// clientLeaseTime returns how long a client may lease a key of a plan. It is 0 if the client may not lease it, for
// example because shadow rules or on_deny: charge need each check.
func clientLeaseTime(p *windows.Plan) time.Duration {
	if p == nil || len(p.Shadows) > 0 || p.Live == nil || p.Live.OnDeny == windows.OnDenyCharge {
		return 0
	}
	return p.LeaseTime()
}

// Lease takes, renews or ends a lease of a client, in one step in Redis. This process stores nothing about it. If
// Redis is away, the error wraps api.ErrUnavailable, and the client must not use the lease any more.
func (s *Service) Lease(req api.LeaseRequest) (api.LeaseAnswer, error) {
	req.Least = cmp.Or(req.Least, 1)
	rules := s.config.Rules()
	matched, err := requestsOf(rules, []api.CheckRequest{{Key: req.Key, Cost: req.Least}})
	if err == nil {
		err = s.leases.validate(req)
	}
	if err != nil {
		return api.LeaseAnswer{}, err
	}
	s.apply(rules, matched)
	c, err := newCall(matched)
	if err != nil {
		return api.LeaseAnswer{}, err
	}
	plan, span := matched[0].Plan, clientLeaseTime(matched[0].Plan)
	if c.never {
		span = 0
	}
	if span == 0 {
		req.Keep, req.Want = 0, 0
	}
	out := api.LeaseAnswer{}
	d := decision{Verdict: counters.Verdict{Allowed: true}, source: api.SourcePolicy}
	if req.Had > 0 || req.Want > 0 {
		req.ID = cmp.Or(req.ID, s.leases.newID(clientLeasePrefix(req.Key), req.Key))
		var got reservations.Leased
		if got, err = s.leases.ask(plan, lease.Reserved(span), req); err != nil {
			return out, leaseError(err)
		}
		s.outage.redisAnswered()
		if s.config.Activity != nil && plan != nil && req.Used > 0 && got.Valid { // the number of checks is not known
			s.config.Activity.Checks(plan.Name(), req.Key, req.Used, req.Used, true)
		}
		out = leaseAnswer(req.ID, got)
		d = decision{Verdict: counters.Verdict{Allowed: got.Units > 0 || req.Want == 0,
			Items: []windows.KeyState{got.State}}, source: api.SourceRedis}
	}
	out.CheckAnswer = c.answerTo(0, d)
	if d.source == api.SourcePolicy && out.Rule != "" { // Redis was not asked
		out.Note = "keys of the rule " + out.Rule + " are not leased to clients"
	}
	matched[0].addByOperator(&out.CheckAnswer)
	out.LeaseMs = span.Milliseconds()
	return out, nil
}

// leaseError adds to an error what may have happened to the lease.
func leaseError(err error) error {
	if errors.Is(err, api.ErrNotSent) {
		return fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w: the lease may not be used any more: %w", api.ErrUnavailable, api.ErrOutcomeUnknown, err)
}

// clientLeasePrefix returns the beginning of the ids of a key's leases. No other key's ids begin like this.
func clientLeasePrefix(key string) string { return "lease" + hash("lease", key)[:16] }

// validate refuses a request that does not fit the last answer that the client received.
func (l *leases) validate(req api.LeaseRequest) error {
	most := req.Had - req.Used
	if req.Want == 0 {
		most = 0
	}
	leastWanted := int64(0) // 0 ends a lease
	if req.ID == "" && req.Had == 0 {
		leastWanted = 1
	}
	for _, one := range []struct {
		name     string
		n, least int64
		most     int64
	}{
		{"had", req.Had, 0, lease.MaxUnits},
		{"used", req.Used, 0, req.Had},
		{"keep", req.Keep, 0, most},
		{"want", req.Want, leastWanted, lease.MaxUnits},
	} {
		if one.n < one.least || one.n > one.most {
			return fmt.Errorf("%w: %s is %d, expected %d to %d", api.ErrBadRequest, one.name, one.n, one.least,
				one.most)
		}
	}
	if (req.ID == "") != (req.Had == 0) {
		return fmt.Errorf("%w: id is %s and had is %d, expected both or none", api.ErrBadRequest,
			api.Shorten(req.ID), req.Had)
	}
	prefix, _, _ := strings.Cut(req.ID, "-")
	if req.ID != "" && (!strings.HasPrefix(prefix, clientLeasePrefix(req.Key)) ||
		req.ID != l.held.ID(prefix, []counters.Request{{Key: req.Key}})) {
		return fmt.Errorf("%w: id %s is of no lease of the key %s", api.ErrBadRequest, api.Shorten(req.ID),
			api.Shorten(req.Key))
	}
	return nil
}
