package check

import (
	"fmt"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/windows"
)

// toAPI converts a decision to the wire format, one entry per request, and counts it.
func (s *Service) toAPI(c *call, d decision) api.ChecksAnswer {
	out := api.ChecksAnswer{Allowed: d.Allowed, Atomic: d.Atomic, Replayed: d.Replayed,
		Checks: make([]api.CheckAnswer, len(c.requests))}
	for i := range c.requests {
		out.Checks[i] = c.answerTo(i, d)
		c.requests[i].addByOperator(&out.Checks[i])
		out.Allowed = out.Allowed && !c.requests[i].blocked()
		out.RetryAfterMs = longest(out.RetryAfterMs, out.Checks[i].RetryAfterMs)
		s.count(c, i, d)
	}
	s.noteShares(&out)
	return out
}

// noteShares adds a note to denials by this process's own count whose cost is within the limit, but above this
// process's share of it. No wait is known then, because Redis may admit the cost once it is back.
func (s *Service) noteShares(all *api.ChecksAnswer) {
	for i := range all.Checks {
		if a := &all.Checks[i]; a.Source == api.SourceLocal && a.RetryAfterMs < 0 {
			a.RetryAfterMs, all.RetryAfterMs = 0, 0
			a.Note = fmt.Sprintf("the cost %d is above this process's share of the limit, one of %d", a.Cost,
				s.config.Instances)
		}
	}
}

// answerTo returns the answer to request i.
func (c *call) answerTo(i int, d decision) api.CheckAnswer {
	r := c.requests[i]
	out := api.CheckAnswer{Allowed: true, Key: r.Key, Cost: r.Cost, Windows: []api.WindowState{},
		Source: api.SourcePolicy, Replayed: d.Replayed}
	switch {
	case r.Never:
		out.Allowed, out.RetryAfterMs = false, -1
		return out
	case r.Plan == nil:
		out.Note = api.NoRuleNote
		return out
	}
	out.Rule, out.Allowed, out.Source = r.Plan.Name(), d.Allowed || r.Plan.Live == nil, d.source
	state := c.state(i, d)
	switch {
	case c.index[i] >= 0 && d.skipped != nil && d.skipped[c.index[i]]:
		out.Note = "not looked at: another key of the call is denied"
		return out
	case state != nil:
		out.Windows, out.InForce, out.Shadow = state.Windows, state.InForce, state.ShadowAnswers(r.Plan)
	case !r.Refund:
		out.Note = redisclient.Failure(d.why)
		if r.Plan.Live != nil {
			out.Note += fmt.Sprintf("; rule %s has on_error: %s", out.Rule, r.Plan.Live.OnError)
			if r.Plan.Live.WithoutRedis() != r.Plan.Live.OnError {
				out.Note += ", and a process alone counts no values"
			}
		}
		if r.Mode == api.ModeCharge {
			out.Note += "; the cost may not be counted"
		}
		return out
	default:
		return out
	}
	out.RetryAfterMs = state.RetryAfter.Milliseconds()
	out.LeaseMs = clientLeaseTime(r.Plan).Milliseconds()
	if d.source == api.SourceLocal {
		out.Note = r.Plan.LocalNote()
	}
	if charge := c.index[i]; charge >= 0 && !d.Allowed && r.Plan.Live != nil {
		a := c.byKey[charge]
		if a.Mode == api.ModeCharge { // it is counted alone, even if the others are denied
			out.Allowed = state.RetryAfter == 0
		}
		out.Charged = !out.Allowed && a.Cost > 0 && a.ChargesDenied()
	}
	if r.Plan.Live == nil {
		out.Note = "only shadow rules match this key"
	}
	return out
}

// state returns the state of the key of request i. It is nil if the key was not checked, or if the counter could not
// answer.
func (c *call) state(i int, d decision) *windows.KeyState {
	switch {
	case c.refunded != nil && c.refunded[i] != nil:
		return c.refunded[i]
	case c.index[i] >= 0 && d.Items != nil:
		return &d.Items[c.index[i]]
	}
	return nil
}

// count counts the outcome of request i, for each rule of its plan.
func (s *Service) count(c *call, i int, d decision) {
	r := c.requests[i]
	if d.Replayed || d.OtherBody {
		r.Cost = 0 // nothing more is charged, so Activity does not receive it
	}
	switch {
	case r.Plan == nil && !r.Never:
		s.config.Metrics.check("", "allowed")
		return
	case r.blocked():
		s.countBlocked(r)
		return
	case c.index[i] < 0:
		return
	}
	if d.Items == nil {
		s.config.Metrics.check(r.Plan.Name(), d.outcome)
		s.record(r.Plan.Name(), r, d.Allowed)
		return
	}
	state, outcome, allowed := d.Items[c.index[i]], d.outcome, d.Allowed
	switch c.byKey[c.index[i]].Mode {
	case api.ModeLook:
		outcome += "look_"
	case api.ModeCharge:
		outcome += "charge_"
		allowed = state.RetryAfter == 0
	}
	s.config.Metrics.check(r.Plan.Name(), outcome+outcomeOf(allowed))
	s.record(r.Plan.Name(), r, allowed)
	for n, state := range state.Shadows {
		name, would := r.Plan.Shadows[n].Name, state.RetryAfter == 0
		s.config.Metrics.check(name, outcome+"shadow_"+outcomeOf(would))
		if exempt := r.Plan.Exempt(); exempt != nil && n == 0 { // the live rule of an exempt key: it admits all
			would = true
		}
		s.record(name, r, would)
	}
}

// record reports a request to Activity, unless it only looks.
func (s *Service) record(rule string, r Request, allowed bool) {
	if s.config.Activity != nil && rule != "" && r.Cost > 0 && r.Mode != api.ModeLook {
		s.config.Activity.Checks(rule, r.Key, 1, r.Cost, allowed)
	}
}

func outcomeOf(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}
