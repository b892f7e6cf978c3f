package windows

import (
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/inprocess"
)

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

// LocalState puts together where a key stands under the rules of the plan.
func (p *Plan) LocalState(states []inprocess.State) KeyState {
	s := newKeyState(states[0].NowMs)
	for i, r := range p.Rules() {
		s.add(r == p.Live, r.localStates(states[i].Windows), longer(0, states[i].RetryAfterMs))
	}
	return s
}
