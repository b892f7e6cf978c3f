package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/windows"
)

// Request is one key of a check with the rules that are evaluated for it.
type Request struct {
	Plan *windows.Plan // nil: nothing limits the key, it is allowed
	Key  string
	// Cost in units; 0 charges nothing and asks whether one unit would be admitted.
	Cost int64
	Mode api.Mode // empty: api.ModeTake
	// Never: the limit is 0. The whole call is denied, and nothing is counted for this request.
	Never bool
	// AboveLimit: a cost that the rule can never admit is denied, with RetryAfterMs
	// below 0; otherwise it is an error (api.ErrCostExceedsLimit).
	AboveLimit bool
	// EachState asks for the state of every key of the call. Without it, a call with one remembered denial is answered
	// from memory, and the answer has no state of the other keys.
	EachState bool
	// Refund gives Cost units back, once the rest of the call is admitted.
	Refund bool
	// Values are the fields whose different values the rules count.
	Values map[string]string

	byOperator
	reserves bool // the cost is reserved, not charged
}

// Check answers one key. If no answer can be given, the error wraps api.ErrBadKey, ErrBadCount or
// ErrCostExceedsLimit. If Redis is away and the rule says deny, the error wraps api.ErrUnavailable, and there is an
// answer too.
func (s *Service) Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	if answer, ok := s.answerHot(ctx, &req); ok {
		return answer, nil
	}
	all, err := s.checkAll(ctx, []api.CheckRequest{req})
	if len(all.Checks) != 1 {
		return api.CheckAnswer{}, err
	}
	return all.Checks[0], err
}

// CheckAll answers several keys, all or nothing. If a key is in several checks, its costs are added up.
func (s *Service) CheckAll(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
	if len(reqs) == 1 {
		if one, ok := s.answerHot(ctx, &reqs[0]); ok {
			return api.ChecksAnswer{Allowed: one.Allowed, Atomic: true, RetryAfterMs: one.RetryAfterMs,
				Checks: []api.CheckAnswer{one}}, nil
		}
	}
	return s.checkAll(ctx, reqs)
}

// checkAll is CheckAll without answerHot.
func (s *Service) checkAll(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
	began, rules := time.Now(), s.config.Rules()
	matched, err := requestsOf(rules, reqs)
	if err == nil {
		err = api.ValidateModes(reqs)
	}
	if err != nil {
		s.observe(ctx, began, nil, false, err)
		return api.ChecksAnswer{}, err
	}
	return s.decideUnder(ctx, rules, matched)
}

// CheckEach answers several keys independently of each other, in one step if possible.
func (s *Service) CheckEach(ctx context.Context, reqs []api.CheckRequest) []api.Each {
	began := time.Now()
	rules := s.config.Rules() // the same for all: under two sets of rules a key would need two scripts
	out := make([]api.Each, len(reqs))
	var calls []*call
	var index []int // call → its request
	for i := range reqs {
		matched, err := requestsOf(rules, reqs[i:i+1])
		if err == nil {
			err = reqs[i].Mode.Validate()
		}
		if err == nil {
			var c *call
			s.apply(rules, matched)
			if c, err = newCall(matched); err == nil {
				calls, index = append(calls, c), append(index, i)
			}
		}
		out[i].Err = err
	}
	replay := s.replayOf(ctx, "each", calls...) // another list under the same key is another request
	if len(calls) > 1 {
		ctx = api.Again(ctx) // if the answer to one is lost, all of them come again
	}
	for n, c := range calls {
		c.setReplay(replay, index[n])
	}
	allowed := true
	for n, d := range s.decideEach(ctx, calls) {
		answer := s.toAPI(calls[n], d)
		out[index[n]] = api.Each{CheckAnswer: answer.Checks[0], Err: d.err}
		allowed = allowed && answer.Allowed
	}
	var first *call
	if len(calls) > 0 {
		first = calls[0]
	}
	s.observe(ctx, began, first, allowed, nil)
	return out
}

// Decide answers requests whose rules are known, all or nothing. A denied call charges no key, except keys whose rule
// has on_deny: charge, and it refunds nothing. The answers are in the order of the requests. The error is like that
// of Check.
func (s *Service) Decide(ctx context.Context, reqs []Request) (api.ChecksAnswer, error) {
	return s.decideUnder(ctx, s.config.Rules(), reqs)
}

// decideUnder is Decide under rules that the caller has read: a call has one set of rules throughout.
func (s *Service) decideUnder(ctx context.Context, rules *windows.Rules, reqs []Request) (api.ChecksAnswer, error) {
	began := time.Now()
	s.apply(rules, reqs)
	c, err := newCall(reqs)
	if err != nil {
		s.observe(ctx, began, nil, false, err)
		return api.ChecksAnswer{}, err
	}
	c.setReplay(s.replayOf(ctx, "all", c), 0)
	d := s.decide(ctx, c)
	if d.err == nil && d.Allowed && !d.Replayed {
		d.err = s.giveBack(ctx, c)
	}
	answer := s.toAPI(c, d)
	s.observe(ctx, began, c, answer.Allowed, d.err)
	return answer, d.err
}

// requestsOf finds the rules of the keys.
func requestsOf(rules *windows.Rules, reqs []api.CheckRequest) ([]Request, error) {
	out := make([]Request, len(reqs))
	for i, r := range reqs {
		cost := cmp.Or(r.Cost, 1)
		if err := (api.Event{Key: r.Key, Count: cost, Values: r.Values}).Validate(); err != nil {
			if len(reqs) > 1 {
				err = fmt.Errorf("checks[%d]: %w", i, err)
			}
			return nil, err
		}
		out[i] = Request{Plan: rules.MatchAsWritten(r.Key), Key: r.Key, Cost: cost, Mode: r.Mode,
			Values: r.Values}
	}
	return out, nil
}

// call is one call while it is decided: its requests, and what is sent to Redis for each of its keys.
type call struct {
	requests []Request
	byKey    []counters.Request // each key once, with its costs added up
	index    []int              // request → its entry in byKey, -1 if it has none
	never    bool               // one of the requests is never admitted: the call only looks
	refunded []*windows.KeyState
}

func newCall(reqs []Request) (*call, error) {
	c := &call{requests: reqs, byKey: make([]counters.Request, 0, len(reqs)), index: make([]int, len(reqs))}
	for i, r := range reqs {
		c.index[i] = -1
		c.never = c.never || r.Never
		if r.Plan == nil || r.Never || r.Refund {
			continue
		}
		if r.Plan.Live != nil && r.Plan.Live.InFlight() > 0 && !r.reserves &&
			r.Mode != api.ModeLook {
			return nil, fmt.Errorf("%w: key %s, as the rule %q has an in_flight window", api.ErrNeedsReservation,
				api.Shorten(r.Key), r.Plan.Live.Name)
		}
		at, err := c.keyIndex(r)
		if err != nil {
			return nil, err
		}
		c.index[i] = at
		a := &c.byKey[at]
		a.Cost += r.Cost
		taken := *a
		if taken.Mode == api.ModeLook { // it answers what take would
			taken.Mode = api.ModeTake
		}
		if live := a.Plan.Live; live != nil && a.Cost > live.Smallest() && !r.AboveLimit && !taken.ChargesDenied() {
			return nil, fmt.Errorf("%w: cost %d of key %s, the rule %q%s allows %d at most", api.ErrCostExceedsLimit,
				a.Cost, api.Shorten(a.Key), live.Name, r.changes(), live.Smallest())
		}
	}
	return c, nil
}

// keyIndex returns the index in byKey of the key of a request. If the key is not there yet, keyIndex adds it.
func (c *call) keyIndex(r Request) (int, error) {
	values, err := r.Plan.Values(func(field string) string { return r.Values[field] })
	if err != nil {
		return 0, fmt.Errorf("key %s: %w", api.Shorten(r.Key), err)
	}
	for i, a := range c.byKey {
		if a.Key != r.Key {
			continue
		}
		if a.Plan != r.Plan {
			return 0, fmt.Errorf("%w: the key %s is given twice under different limits", api.ErrBadRequest,
				api.Shorten(r.Key))
		}
		if mode := r.Mode.Or(api.ModeTake); a.Mode != mode {
			return 0, fmt.Errorf("%w: the key %s is given with mode %s and with mode %s", api.ErrBadRequest,
				api.Shorten(r.Key), a.Mode, mode)
		}
		if !slices.Equal(a.Values, values) {
			return 0, fmt.Errorf("%w: the key %s is given twice with different values", api.ErrBadRequest,
				api.Shorten(r.Key))
		}
		return i, nil
	}
	c.byKey = append(c.byKey, counters.Request{Plan: r.Plan, Key: r.Key, Mode: r.Mode.Or(api.ModeTake),
		Reserves: r.reserves, Values: values})
	return len(c.byKey) - 1, nil
}

// giveBack returns units, one request after the other. If one fails, the units of the requests before it have been
// returned.
func (s *Service) giveBack(ctx context.Context, c *call) error {
	for i, r := range c.requests {
		if !r.Refund || r.Plan == nil {
			continue
		}
		if c.refunded == nil {
			c.refunded = make([]*windows.KeyState, len(c.requests))
		}
		var err error
		if c.refunded[i], err = s.refund(ctx, r.Plan, r.Key, r.Cost); err != nil {
			return err
		}
	}
	return nil
}
