package windows

import (
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/lua"
)

// KeyState is the state of a key under a rule, after a check or from a peek.
type KeyState struct {
	NowMs int64
	// RetryAfter is how long it takes until the cost would be admitted; 0 if it is
	// admitted, below 0 if it can never be (a cost above the limit of a shadow rule).
	RetryAfter  time.Duration
	Windows     []api.WindowState // of the rule that decides; empty if there is none
	api.InForce                   // by the rule that decides
	// Shadows has the states of the key under the shadow rules of its plan, in their
	// order; nil if they were not evaluated.
	Shadows []KeyState
}

func newKeyState(nowMs int64) KeyState { return KeyState{NowMs: nowMs, Windows: []api.WindowState{}} }

// add adds the state of the key under a rule of its plan. wait is the RetryAfter of
// a shadow rule. For the rule that decides, RetryAfter becomes the longer of
// RetryAfter and wait.
func (s *KeyState) add(live bool, states []api.WindowState, wait time.Duration) {
	if live {
		s.Windows, s.RetryAfter = states, longer(s.RetryAfter, wait.Milliseconds())
		return
	}
	s.Shadows = append(s.Shadows, KeyState{NowMs: s.NowMs, RetryAfter: wait, Windows: states})
}

// After returns the state after `passed`, in whole milliseconds, if nothing was charged and nothing
// was given back in that time; see api.WindowState.After.
func (s KeyState) After(passed time.Duration) KeyState {
	ms := passed.Milliseconds()
	s.NowMs += ms
	if s.RetryAfter > 0 {
		s.RetryAfter = max(s.RetryAfter-time.Duration(ms)*time.Millisecond, 0)
	}
	s.Windows = slices.Clone(s.Windows)
	for i, w := range s.Windows {
		s.Windows[i] = w.After(ms)
	}
	s.setInForce(s.InForce)
	s.Shadows = slices.Clone(s.Shadows)
	for i, one := range s.Shadows {
		s.Shadows[i] = one.After(passed)
	}
	return s
}

// setInForce sets what is in force for the key, unless it has ended.
func (s *KeyState) setInForce(f api.InForce) {
	left := f.DeniesUntilMs() - s.NowMs
	if s.InForce = f; left <= 0 {
		s.InForce = api.InForce{}
	}
	for i, w := range s.Windows {
		s.Windows[i] = s.WindowInForce(w, left)
	}
}

// ShadowAnswers returns what the shadow rules of the plan would have answered.
func (s KeyState) ShadowAnswers(p *Plan) []api.ShadowAnswer {
	var out []api.ShadowAnswer
	for i, one := range s.Shadows {
		out = append(out, api.ShadowAnswer{
			Rule: p.Shadows[i].Name, Allowed: one.RetryAfter == 0, RetryAfterMs: one.RetryAfter.Milliseconds(),
			Windows: one.Windows,
		})
	}
	return out
}

// KeyState returns the result of a peek in the form of the API.
func (s KeyState) KeyState(p *Plan, key string) api.KeyState {
	out := api.KeyState{Key: key, Rule: p.Name(), Windows: s.Windows, InForce: s.InForce}
	for i, one := range s.Shadows {
		if i == 0 && p.exempt != nil {
			out.Rule, out.Windows = p.exempt.Name, one.Windows
			continue
		}
		out.Shadow = append(out.Shadow, api.ShadowState{Rule: p.Shadows[i].Name, Windows: one.Windows})
	}
	return out
}

// longer returns the longer of two waits; -1 ms is forever.
func longer(wait time.Duration, ms int64) time.Duration {
	if wait < 0 || ms < 0 {
		return -time.Millisecond
	}
	return max(wait, time.Duration(ms)*time.Millisecond)
}

// State converts the library's result for a key.
func (p *Plan) State(got lua.KeyState) KeyState {
	s := newKeyState(got.NowMs)
	s.RetryAfter = longer(0, got.RetryMs)
	shadow := 0 // where the rule's windows begin among those that do not decide
	for i, r := range p.Rules() {
		from := p.places[i].from
		states, wait := r.states(got.NowMs, got.Windows[from:from+len(r.Windows)]), time.Duration(0)
		if r == p.Live {
			s.add(true, states, 0)
			s.setInForce(r.inForce(got.InForce))
			continue
		}
		if got.ShadowMs != nil {
			for _, ms := range got.ShadowMs[shadow : shadow+len(r.Windows)] {
				wait = longer(wait, ms)
			}
		}
		shadow += len(r.Windows)
		s.add(false, states, wait)
	}
	return s
}

// states converts the library's states of the rule's windows.
func (r *Rule) states(nowMs int64, list []lua.WindowState) []api.WindowState {
	out := make([]api.WindowState, len(list))
	for i, u := range list {
		var nextFree, empty time.Duration
		if u.Used > 0 {
			nextFree = time.Duration(u.NextFreeMs-nowMs) * time.Millisecond
			empty = time.Duration(u.EmptyMs-nowMs) * time.Millisecond
		}
		length := time.Duration(r.Windows[i].lengthMs(nowMs)) * time.Millisecond
		out[i] = api.NewWindowState(r.Windows[i].Limit, length, u.Used, nextFree, empty)
	}
	return r.mark(out)
}

// mark sets the kinds of the windows in the states of all windows of the rule.
func (r *Rule) mark(states []api.WindowState) []api.WindowState {
	for i, w := range r.Windows {
		states[i] = states[i].As(w.kind())
	}
	return states
}

// FillThrottled sets how much the window of a decision has used, and whether it is in flight.
func (p *Plan) FillThrottled(got lua.KeyState, t *api.Throttled) {
	for i, r := range p.Rules() {
		if r.Name != t.Rule {
			continue
		}
		for w, window := range r.Windows {
			if window.lengthMs(got.NowMs) == t.WindowMs {
				t.Used = got.Windows[p.places[i].from+w].Used
				kind := window.kind()
				t.Periodic, t.InFlight, t.Distinct = kind.Periodic, kind.InFlight, kind.Distinct
			}
		}
	}
}
