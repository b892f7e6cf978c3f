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
	// Check charges all requests if all are admitted, else none. Keys differ from
	// each other; costs are valid and within their rule's limits.
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

// Answered is false for the verdict of a call that was not answered.
func (v Verdict) Answered() bool { return len(v.Items) > 0 }

// KeyState is where a key stands under a rule, after a check or as peeked.
type KeyState struct {
	NowMs int64
	// RetryAfter is how long until the cost would be admitted; 0 where it is, and
	// below 0 where it never can be (a cost above the limit of a shadow rule).
	RetryAfter time.Duration
	Windows    []api.WindowState // of the rule that decides; empty where there is none
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

// Want sets RetryAfter for a's cost, of a state that a look without cost gave:
// it is exact for one unit, else the earliest that it can be, when the first
// units come back.
func (s *KeyState) Want(a Request) {
	if a.Cost <= 1 {
		return
	}
	s.RetryAfter = s.wait(a.Cost)
	for i := range s.Shadows {
		s.Shadows[i].RetryAfter = s.Shadows[i].wait(a.Cost)
	}
}

func (s *KeyState) wait(cost int64) time.Duration {
	wait := s.RetryAfter
	for _, w := range s.Windows {
		switch {
		case cost > w.Limit:
			return -time.Millisecond
		case w.Used+cost > w.Limit:
			wait = longer(wait, w.NextFreeMs)
		}
	}
	return wait
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
	s.Shadows = slices.Clone(s.Shadows)
	for i, one := range s.Shadows {
		s.Shadows[i] = one.After(passed)
	}
	return s
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
	out := api.KeyState{Key: key, Rule: p.Name(), Windows: s.Windows}
	for i, one := range s.Shadows {
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
