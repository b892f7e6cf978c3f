package windows

import (
	"context"
	"time"

	"github.com/streamcounter/streamcounter/api"
)

// Counter answers for keys under rules, atomically. Redis is the shared one
// (redis.go), Local this process's own (local.go).
type Counter interface {
	// Check charges all requests if all are admitted, else none. Keys differ from
	// each other; costs are valid and within their rule's limits.
	Check(ctx context.Context, requests []Request) (Verdict, error)
	// Peek gives where a key stands.
	Peek(ctx context.Context, plan *Plan, key string) (KeyState, error)
	// Reset forgets what a key has spent, and says whether there was anything.
	Reset(ctx context.Context, plan *Plan, key string) (bool, error)
}

// Request is one key of a check.
type Request struct {
	Plan *Plan
	Key  string
	Cost int64 // 0 charges nothing and requests whether one unit would be admitted
}

// Verdict is the answer to a check.
type Verdict struct {
	Allowed bool
	// Atomic: one step decided all requests.
	Atomic bool
	Items  []KeyState // in the order of the requests
	// Transitions is how many levels changed.
	Transitions int64
}

// KeyState is where a key stands under a rule, after a check or as peeked.
type KeyState struct {
	NowMs int64
	// RetryAfter is how long until the cost would be admitted; 0 where it is, and
	// below 0 where it never can be (a cost above the limit of a shadow rule).
	RetryAfter time.Duration
	Windows    []WindowState // of the rule that decides; empty where there is none
	// Shadows is where it stands under the shadow rules of its plan, in their order;
	// nil where nobody has evaluated them.
	Shadows []KeyState
}

// Want sets RetryAfter for a's cost, of a state that a look without cost gave:
// it is exact for one unit, else the earliest that it can be, when the first
// units come back.
func (s *KeyState) Want(a Request) {
	if a.Cost <= 1 {
		return
	}
	if a.Plan.Live != nil {
		s.RetryAfter = s.wait(a.Plan.Live, a.Cost)
	}
	for i, r := range a.Plan.Shadows {
		s.Shadows[i].RetryAfter = s.Shadows[i].wait(r, a.Cost)
	}
}

func (s *KeyState) wait(r *Rule, cost int64) time.Duration {
	wait := s.RetryAfter
	for i, w := range r.Windows {
		switch {
		case cost > w.Limit:
			return -time.Millisecond
		case s.Windows[i].Used+cost > w.Limit:
			wait = max(wait, s.Windows[i].NextFree)
		}
	}
	return wait
}

// WindowState is where a key stands in one window.
type WindowState struct {
	Used int64
	// NextFree is how long until the first units come back, Reset until all have; 0
	// where none are used.
	NextFree, Reset time.Duration
}

// ShadowAnswers words what the shadow rules of the plan would have said.
func (s KeyState) ShadowAnswers(p *Plan) []api.ShadowAnswer {
	var out []api.ShadowAnswer
	for i, one := range s.Shadows {
		out = append(out, api.ShadowAnswer{
			Rule: p.Shadows[i].Name, Allowed: one.RetryAfter == 0, RetryAfterMs: one.RetryAfter.Milliseconds(),
			Windows: one.WindowStates(p.Shadows[i]),
		})
	}
	return out
}

// KeyState words a peek for the wire.
func (s KeyState) KeyState(p *Plan, key string) api.KeyState {
	out := api.KeyState{Key: key, Rule: p.Name(), Windows: s.WindowStates(p.Live)}
	for i, one := range s.Shadows {
		out.Shadow = append(out.Shadow, api.ShadowState{Rule: p.Shadows[i].Name,
			Windows: one.WindowStates(p.Shadows[i])})
	}
	return out
}

// WindowStates words a state for the wire; r may be nil, as in a plan without
// a rule that decides.
func (s KeyState) WindowStates(r *Rule) []api.WindowState {
	if r == nil {
		return []api.WindowState{}
	}
	out := make([]api.WindowState, len(r.Windows))
	for i, w := range r.Windows {
		u := s.Windows[i]
		out[i] = api.WindowState{
			Limit: w.Limit, WindowMs: w.Per.Milliseconds(), Used: u.Used, Remaining: max(0, w.Limit-u.Used),
			ResetMs: u.Reset.Milliseconds(), NextFreeMs: u.NextFree.Milliseconds(),
		}
	}
	return out
}
