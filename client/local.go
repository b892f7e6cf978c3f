package client

import (
	"fmt"
	"slices"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/inprocess"
)

// countLocally completes the answer that decide has begun: it counts in this process, all or nothing, with this
// instance's share of each limit. It does not know what was charged elsewhere or before. Keys without a rule (nil)
// are admitted; strictest has already refused those that must not be.
func (s *shared) countLocally(all *api.ChecksAnswer, rules []*Rule, reqs []api.CheckRequest) {
	var counted []inprocess.Request
	var index []int // in counted → in rules
	for i, r := range rules {
		if r != nil {
			counted = append(counted, inprocess.Request{Rule: r.share(s.config.Instances), Key: reqs[i].Key,
				Cost: reqs[i].Cost, Mode: reqs[i].Mode, ChargesDenied: reqs[i].Mode == api.ModeCharge})
			index = append(index, i)
		}
	}
	var states []inprocess.State
	states, all.Allowed = s.local.Check(counted)
	for i := range all.Checks {
		all.Checks[i].Allowed = all.Allowed || reqs[i].Mode == api.ModeCharge // each charge is counted alone
	}
	for j, i := range index {
		c := &all.Checks[i]
		if reqs[i].Mode == api.ModeCharge {
			c.Allowed = states[j].RetryAfterMs == 0
			c.Charged = !c.Allowed
		}
		c.Source, c.Windows, c.RetryAfterMs = api.SourceLocal, states[j].Windows, max(states[j].RetryAfterMs, 0)
		all.RetryAfterMs = max(all.RetryAfterMs, c.RetryAfterMs)
		if states[j].RetryAfterMs < 0 {
			c.Note = fmt.Sprintf("the cost %d is above this instance's share, one of %d; %s", states[j].Cost,
				s.config.Instances, c.Note)
		}
	}
	if slices.ContainsFunc(states, func(st inprocess.State) bool { return st.RetryAfterMs < 0 }) {
		all.RetryAfterMs = 0
	}
}

// share returns the rule with the share of one of n instances.
func (r *Rule) share(n int) inprocess.Rule {
	out := inprocess.Rule{Name: r.Name, Windows: make([]inprocess.Window, len(r.Limits))}
	for i, l := range r.Limits {
		out.Windows[i] = inprocess.Window{Limit: l.Units, Per: l.Per}
	}
	return out.Share(n)
}
