package windows

import (
	"context"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/api"
)

// Counter answers for keys under rules, atomically. Redis is the shared one
// (redis.go), Local this process's own (local.go).
type Counter interface {
	// Check charges all requests if all are admitted, else those that say so. Keys differ
	// from each other, and costs are valid.
	Check(ctx context.Context, requests []Request) (Verdict, error)
	// Peek gives where a key stands.
	Peek(ctx context.Context, plan *Plan, key string) (KeyState, error)
	// Reset forgets what a key has used, and says whether there was anything.
	Reset(ctx context.Context, plan *Plan, key string) (bool, error)
}

// Request is one key of a check.
type Request struct {
	Plan *Plan
	Key  string
	Cost int64    // 0 charges nothing and requests whether one unit would be admitted
	Mode api.Mode // empty: api.ModeTake. All requests of a call are of api.ModeCharge, or none is
	// Reserves: the cost is to be reserved. Where that is denied nothing has happened yet, so nothing counts.
	Reserves bool
	// Memory, in the first request of a call, is where the answer to the whole call is remembered; nil: nowhere.
	Memory *Memory
	// Values are what Plan.Values gives of the request; empty where the plan counts none.
	Values []string
}

// ChargesDenied says whether the cost counts where the request is denied: as the rule
// that decides has on_deny: charge, or by the mode.
func (r Request) ChargesDenied() bool {
	switch r.Mode {
	case api.ModeLook:
		return false
	case api.ModeCharge:
		return true
	}
	return !r.Reserves && r.Plan.Live != nil && r.Plan.Live.OnDeny == OnDenyCharge
}

// Verdict is the answer to a check.
type Verdict struct {
	Allowed bool
	// Atomic: one step decided all requests.
	Atomic bool
	// Replayed: the call was answered before, under its Memory, and this is that answer.
	Replayed bool
	// OtherBody: its Memory is that of a call with another fingerprint. Nothing was decided.
	OtherBody bool
	Items     []KeyState // in the order of the requests
	// Transitions is how many levels changed.
	Transitions int64
}

// Answered is false for the verdict of a call that was not answered.
func (v Verdict) Answered() bool { return len(v.Items) > 0 }

// KeyState is where a key stands under a rule, after a check or as peeked.
type KeyState struct {
	NowMs int64
	// RetryAfter is how long until the cost would be admitted; 0 where it is, and
	// below 0 where it never can be (a cost above the limit of a shadow rule).
	RetryAfter  time.Duration
	Windows     []api.WindowState // of the rule that decides; empty where there is none
	api.InForce                   // by the rule that decides
	// Shadows is where it stands under the shadow rules of its plan, in their order;
	// nil where nobody has evaluated them.
	Shadows []KeyState
}

func newKeyState(nowMs int64) KeyState { return KeyState{NowMs: nowMs, Windows: []api.WindowState{}} }

// add puts in where the key stands under a rule of its plan; wait is that of a
// shadow rule, and for the one that decides RetryAfter is the longer of both.
func (s *KeyState) add(live bool, states []api.WindowState, wait time.Duration) {
	if live {
		s.Windows, s.RetryAfter = states, longer(s.RetryAfter, wait.Milliseconds())
		return
	}
	s.Shadows = append(s.Shadows, KeyState{NowMs: s.NowMs, RetryAfter: wait, Windows: states})
}

// After is the state that many whole milliseconds later, if nothing was charged and nothing given
// back meanwhile; see api.WindowState.After.
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

// ShadowAnswers words what the shadow rules of the plan would have said.
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

// KeyState words a peek for the wire.
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

// longer gives the longer of two waits; -1 ms is forever.
func longer(wait time.Duration, ms int64) time.Duration {
	if wait < 0 || ms < 0 {
		return -time.Millisecond
	}
	return max(wait, time.Duration(ms)*time.Millisecond)
}
