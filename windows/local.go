package windows

import (
	"context"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/inprocess"
)

// Local counts in this process, exactly, whatever the algorithm of a rule. It
// answers while Redis is away, and tests compare the scripts with it. A key that
// has gone quiet is forgotten in passing.
type Local struct {
	counter *inprocess.Counter
	// Instances is how many processes share the limits: each counts up to the limit divided by it, rounded
	// down, at least 1. Below 2 the limits are whole. Set it before the first use.
	Instances int
}

// NewLocal counts up to maxKeys keys, each once per rule of its plan; 0: no bound. A
// further key takes the place of one that was used long ago, whose count then starts from zero.
// now is the clock in ms since 1970; nil means this machine's.
func NewLocal(maxKeys int, now func() int64) *Local {
	return &Local{counter: inprocess.New(maxKeys, now)}
}

// Len is how many keys it holds.
func (l *Local) Len() int { return l.counter.Len() }

// Add counts an event at its own time, as folding does; one that has left every
// window of a rule counts nothing there.
func (l *Local) Add(plan *Plan, key string, ms, count int64) {
	for _, at := range plan.places {
		l.counter.Add(at.inProcess.Share(l.Instances), key, ms, count)
	}
}

// Check implements Counter. It gives no error.
func (l *Local) Check(_ context.Context, requests []Request) (Verdict, error) {
	list := make([]inprocess.Request, 0, len(requests))
	for _, a := range requests {
		for _, at := range a.Plan.places {
			list = append(list, inprocess.Request{Rule: at.inProcess.Share(l.Instances), Key: a.Key,
				Cost: a.Cost, Mode: a.Mode, ChargesDenied: a.ChargesDenied()})
		}
	}
	states, allowed := l.counter.Check(list)
	v := Verdict{Allowed: allowed, Atomic: true, Items: make([]KeyState, len(requests))}
	for i, a := range requests {
		n := len(a.Plan.Rules())
		v.Items[i], states = a.Plan.localState(states[:n]), states[n:]
	}
	return v, nil
}

// Peek implements Counter. It gives no error.
func (l *Local) Peek(_ context.Context, plan *Plan, key string) (KeyState, error) {
	states := make([]inprocess.State, len(plan.places))
	for i, at := range plan.places {
		states[i] = l.counter.Peek(at.inProcess.Share(l.Instances), key)
	}
	return plan.localState(states), nil
}

// Reset implements Counter. It gives no error.
func (l *Local) Reset(_ context.Context, plan *Plan, key string) (had bool, err error) {
	for _, r := range plan.Rules() {
		had = l.counter.Reset(r.Name, key) || had
	}
	return had, nil
}

// inProcess is the rule as it is counted in this process: without windows that count values.
func (r *Rule) inProcess() inprocess.Rule {
	out := inprocess.Rule{Name: r.Name, Shadow: r.Shadow}
	for _, w := range r.Windows {
		if w.Distinct != "" {
			continue
		}
		out.Windows = append(out.Windows, inprocess.Window{Limit: w.Limit, Per: w.Per, Period: w.period()})
	}
	return out
}

// localStates gives the states of all windows of the rule. Those that count values are not counted: they are as if
// nothing was used.
func (r *Rule) localStates(counted []api.WindowState) []api.WindowState {
	states := make([]api.WindowState, len(r.Windows))
	for i, w := range r.Windows {
		if w.Distinct != "" {
			states[i] = api.NewWindowState(w.Limit, w.Per, 0, 0, 0)
			continue
		}
		states[i], counted = counted[0], counted[1:]
	}
	return r.mark(states)
}

// localState puts together where a key stands under the rules of the plan.
func (p *Plan) localState(states []inprocess.State) KeyState {
	s := newKeyState(states[0].NowMs)
	for i, r := range p.Rules() {
		s.add(r == p.Live, r.localStates(states[i].Windows), longer(0, states[i].RetryAfterMs))
	}
	return s
}
