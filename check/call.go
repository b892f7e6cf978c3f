package check

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// Check answers one key. The error wraps api.ErrBadKey, ErrBadCount or
// ErrCostExceedsLimit where no answer can be given, and api.ErrUnavailable,
// together with an answer, where Redis is away and the rule says deny.
func (s *Service) Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	all, err := s.CheckAll(ctx, []api.CheckRequest{req})
	if len(all.Checks) != 1 {
		return api.CheckAnswer{}, err
	}
	return all.Checks[0], err
}

// CheckAll answers several keys, all or nothing. Costs of a key that stands in
// several checks are added up.
func (s *Service) CheckAll(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
	defer s.config.Metrics.observe(time.Now())
	c, err := s.newCall(s.config.Rules(), reqs)
	if err != nil {
		return api.ChecksAnswer{}, err
	}
	if len(c.asks) == 0 {
		return c.out, nil
	}
	return s.answer(c, s.decide(ctx, c.asks))
}

// Each is what became of one of several checks.
type Each struct {
	Answer api.CheckAnswer
	Err    error // as of Check
}

// CheckEach answers several keys, each by itself, in one step where it can.
func (s *Service) CheckEach(ctx context.Context, reqs []api.CheckRequest) []Each {
	defer s.config.Metrics.observe(time.Now())
	rules := s.config.Rules()
	out := make([]Each, len(reqs))
	calls := make([]*call, 0, len(reqs))
	asks := make([][]windows.Ask, 0, len(reqs))
	index := make([]int, 0, len(reqs)) // call → its request
	for i := range reqs {
		c, err := s.newCall(rules, reqs[i:i+1])
		switch {
		case err != nil:
			out[i].Err = err
		case len(c.asks) == 0:
			out[i].Answer = c.out.Checks[0]
		default:
			calls, asks, index = append(calls, c), append(asks, c.asks), append(index, i)
		}
	}
	if len(calls) == 0 {
		return out
	}
	for n, d := range s.decideEach(ctx, asks) {
		all, err := s.answer(calls[n], d)
		out[index[n]] = Each{all.Checks[0], err}
	}
	return out
}

// call is one request on its way: what Redis is asked, and the answer as far as
// it is known.
type call struct {
	asks  []windows.Ask
	index []int // check → its ask, -1 where no rule matches
	out   api.ChecksAnswer
}

func (s *Service) newCall(rules *windows.Rules, reqs []api.CheckRequest) (*call, error) {
	c := &call{
		asks: make([]windows.Ask, 0, len(reqs)), index: make([]int, len(reqs)),
		out: api.ChecksAnswer{Allowed: true, Atomic: true, Checks: make([]api.CheckAnswer, len(reqs))},
	}
	for i, r := range reqs {
		cost := cmp.Or(r.Cost, 1)
		if err := (api.Event{Key: r.Key, Count: cost}).Validate(); err != nil {
			return nil, err
		}
		c.out.Checks[i] = api.CheckAnswer{Allowed: true, Key: r.Key, Cost: cost, Windows: []api.WindowState{}, Source: api.SourcePolicy}
		rule := rules.Match(r.Key)
		if rule == nil {
			c.index[i] = -1
			c.out.Checks[i].Note = "no rule matches this key"
			s.config.Metrics.check("", "allowed")
			continue
		}
		at := c.ask(rule, r.Key)
		c.asks[at].Cost += cost
		if err := costFits(c.asks[at]); err != nil {
			return nil, err
		}
		c.index[i] = at
	}
	return c, nil
}

// ask gives the index of the ask for a key, which stands once however often it is checked.
func (c *call) ask(rule *windows.Rule, key string) int {
	for i := range c.asks {
		if c.asks[i].Key == key {
			return i
		}
	}
	c.asks = append(c.asks, windows.Ask{Rule: rule, Key: key})
	return len(c.asks) - 1
}

func costFits(a windows.Ask) error {
	if a.Cost > a.Rule.Smallest() && !a.Rule.Shadow {
		return fmt.Errorf("%w: cost %d of key %s, the rule %q allows %d at most", api.ErrCostExceedsLimit, a.Cost, api.Shorten(a.Key), a.Rule.Name, a.Rule.Smallest())
	}
	return nil
}

// answer words a decision for the caller and counts it.
func (s *Service) answer(c *call, d decision) (api.ChecksAnswer, error) {
	out := c.out
	out.Allowed, out.Atomic = d.Allowed, d.Atomic
	for i := range out.Checks {
		if c.index[i] < 0 {
			continue
		}
		cost := out.Checks[i].Cost
		out.Checks[i] = answerOf(c.asks[c.index[i]], d, c.index[i])
		out.Checks[i].Cost = cost // its own: the ask has the sum
		out.RetryAfterMs = max(out.RetryAfterMs, out.Checks[i].RetryAfterMs)
		s.count(c.asks[c.index[i]], d, c.index[i])
	}
	return out, d.err
}

// answerOf words a decision about ask i.
func answerOf(a windows.Ask, d decision, i int) api.CheckAnswer {
	out := api.CheckAnswer{
		Allowed: d.Allowed, Rule: a.Rule.Name, Key: a.Key, Cost: a.Cost, Windows: []api.WindowState{},
		Source: d.source, Shadow: a.Rule.Shadow,
	}
	if d.Items == nil {
		out.Note = "Redis cannot answer, the rule's on_error decided"
		return out
	}
	out.Windows = d.Items[i].WindowStates(a.Rule)
	out.RetryAfterMs = d.Items[i].RetryAfter.Milliseconds()
	if d.wouldDeny(a, i) {
		out.WouldDeny, out.RetryAfterMs = true, 0
	}
	return out
}

// wouldDeny tells that a shadow rule would have denied ask i.
func (d decision) wouldDeny(a windows.Ask, i int) bool {
	return a.Rule.Shadow && d.Items[i].RetryAfter != 0
}

// count counts what became of ask i.
func (s *Service) count(a windows.Ask, d decision, i int) {
	label := d.outcome
	switch {
	case d.Items == nil:
	case d.wouldDeny(a, i):
		label += "shadow_denied"
	default:
		label += outcomeOf(d.Allowed)
	}
	s.config.Metrics.check(a.Rule.Name, label)
}

func outcomeOf(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}
