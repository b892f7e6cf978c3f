package windows

import (
	"slices"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/inprocess"
)

// inProcess returns the rule as this process counts it: without windows that count values.
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

// localStates returns the states of the windows of the rule that are counted here: not of those that count values.
func (r *Rule) localStates(counted []api.WindowState) []api.WindowState {
	states := make([]api.WindowState, len(r.Windows))
	for i, w := range r.Windows {
		if w.Distinct == "" {
			states[i], counted = counted[0], counted[1:]
		}
	}
	return slices.DeleteFunc(r.mark(states), func(s api.WindowState) bool { return s.Distinct != "" })
}

// LocalNote returns in words what LocalState leaves out; empty if it leaves out nothing.
func (p *Plan) LocalNote() string {
	if p.Live == nil || !p.Live.distinct() {
		return ""
	}
	return "Redis does not count now, and a process alone counts no values"
}

// LocalState returns the state of a key under the rules of the plan.
func (p *Plan) LocalState(states []inprocess.State) KeyState {
	s := newKeyState(states[0].NowMs)
	for i, r := range p.Rules() {
		s.add(r == p.Live, r.localStates(states[i].Windows), longer(0, states[i].RetryAfterMs))
	}
	return s
}
