package windows

import (
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

// localStates returns the states of all windows of the rule. Windows that count values are not counted here. Their
// states are as if nothing was used.
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

// LocalState returns the state of a key under the rules of the plan.
func (p *Plan) LocalState(states []inprocess.State) KeyState {
	s := newKeyState(states[0].NowMs)
	for i, r := range p.Rules() {
		s.add(r == p.Live, r.localStates(states[i].Windows), longer(0, states[i].RetryAfterMs))
	}
	return s
}
