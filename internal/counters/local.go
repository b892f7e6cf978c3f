package counters

import (
	"context"

	"github.com/streamcounter/streamcounter/internal/inprocess"
	"github.com/streamcounter/streamcounter/windows"
)

// Local counts in this process, exactly, whatever the algorithm of a rule. It
// answers while Redis does not, and tests compare the scripts with it. Other calls
// remove keys that are no longer used.
type Local struct {
	counter *inprocess.Counter
	// Instances is how many processes share the limits. Each process counts up to the limit divided by Instances,
	// rounded down, at least 1. Below 2 the limits are not divided. Set it before the first use.
	Instances int
}

// NewLocal returns a Local for up to maxKeys keys, where each key counts once per rule of its plan; 0: no
// bound. One more key replaces a key that was used long ago, whose count then starts from zero.
// now returns the time in ms since 1970; nil means this machine's clock.
func NewLocal(maxKeys int, now func() int64) *Local {
	return &Local{counter: inprocess.New(maxKeys, now)}
}

// Len returns how many keys it has.
func (l *Local) Len() int { return l.counter.Len() }

// Add counts an event at its own time, as folding does. An event that has left every
// window of a rule is not counted for that rule.
func (l *Local) Add(plan *windows.Plan, key string, ms, count int64) {
	for _, rule := range plan.InProcess() {
		l.counter.Add(rule.Share(l.Instances), key, ms, count)
	}
}

// Check implements Counter. It never returns an error.
func (l *Local) Check(_ context.Context, requests []Request) (Verdict, error) {
	list := make([]inprocess.Request, 0, len(requests))
	for _, request := range requests {
		for _, rule := range request.Plan.InProcess() {
			list = append(list, inprocess.Request{Rule: rule.Share(l.Instances), Key: request.Key,
				Cost: request.Cost, Mode: request.Mode, ChargesDenied: request.ChargesDenied()})
		}
	}
	states, allowed := l.counter.Check(list)
	v := Verdict{Allowed: allowed, Atomic: true, Items: make([]windows.KeyState, len(requests))}
	for i, request := range requests {
		n := len(request.Plan.Rules())
		v.Items[i], states = request.Plan.LocalState(states[:n]), states[n:]
	}
	return v, nil
}

// Peek implements Counter. It never returns an error.
func (l *Local) Peek(_ context.Context, plan *windows.Plan, key string) (windows.KeyState, error) {
	var states []inprocess.State
	for _, rule := range plan.InProcess() {
		states = append(states, l.counter.Peek(rule.Share(l.Instances), key))
	}
	return plan.LocalState(states), nil
}

// Reset implements Counter. It never returns an error.
func (l *Local) Reset(_ context.Context, plan *windows.Plan, key string) (had bool, err error) {
	for _, r := range plan.Rules() {
		had = l.counter.Reset(r.Name, key) || had
	}
	return had, nil
}
