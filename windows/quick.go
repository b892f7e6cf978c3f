package windows

import (
	"context"
	"hash/maphash"
	"slices"
	"sync/atomic"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/lua"
)

// nearLevels remembers keys whose last check was denied or stood at a level: asking the
// quick script of them would be in vain. It may forget any, and take one key for
// another: both cost time alone.
type nearLevels struct {
	seed  maphash.Seed
	slots [4096]atomic.Uint64 // hash of a counter's name
}

func (n *nearLevels) slot(counter string) (*atomic.Uint64, uint64) {
	h := maphash.String(n.seed, counter) | 1
	return &n.slots[(h>>32)%uint64(len(n.slots))], h
}

func (n *nearLevels) has(counter string) bool {
	slot, h := n.slot(counter)
	return slot.Load() == h
}

func (n *nearLevels) set(counter string, near bool) {
	slot, h := n.slot(counter)
	switch {
	case near:
		slot.Store(h)
	case slot.Load() == h:
		slot.Store(0)
	}
}

// quickBatch is what is asked of the quick script in one run. Calls of one key, one after the other, share
// the counter that they ask for.
type quickBatch struct {
	counters []lua.QuickCounter
	calls    []quickCall
	shared   map[string]int // name → where it stands, while the next call of it may share it; only of a run of several
	of       []*planCounter // what rules count
	rules    []*lua.Rule
}

// quickCall says where the first counter of a call stands, and, where it has one key, the units asked of
// that by it and those before.
type quickCall struct {
	call, first int
	units       int64
}

// quick answers the calls that the quick script can answer and gives those that remain.
// Where it fails none was answered.
func (s *Redis) quick(ctx context.Context, calls [][]Request, verdicts []Verdict) (rest []int, err error) {
	var b quickBatch
	names, algorithm, rest := s.forQuick(calls)
	for i, names := range names {
		if names != nil {
			b.add(s, i, names, calls)
		}
	}
	if len(b.calls) == 0 {
		return rest, nil
	}
	states, err := lua.Quick(ctx, s.redis, algorithm, s.now(), b.counters)
	if err != nil {
		return nil, err
	}
	for _, q := range b.calls {
		call, got := calls[q.call], states[q.first:]
		if got[0].NowMs == 0 {
			rest = append(rest, q.call)
			continue
		}
		s.answeredQuick.Add(1)
		items := make([]KeyState, len(call))
		for i, a := range call {
			state := got[i]
			if later := b.counters[q.first].Units - q.units; len(call) == 1 && later > 0 {
				state.Windows = slices.Clone(state.Windows)
				for w := range state.Windows {
					state.Windows[w].Used -= later
				}
			}
			items[i] = a.Plan.state([]lua.CheckResult{state})
		}
		verdicts[q.call] = Verdict{Allowed: true, Atomic: true, Items: items}
	}
	slices.Sort(rest)
	return rest, nil
}

// forQuick: nothing but a plain charge of one key.
func (r Request) forQuick() bool {
	return r.Cost > 0 && (r.Mode == "" || r.Mode == api.ModeTake) && r.Idempotency == nil
}

// forQuick says which calls may be answered by the quick script, by the names of their counters,
// and which not. Those charge keys under one rule each, without shadows, of one algorithm, none of which was near
// a level the last time. A call that asks for a counter of one that remains, remains too, so that calls are answered
// in order.
func (s *Redis) forQuick(calls [][]Request) (names [][]string, algorithm string, rest []int) {
	names = make([][]string, len(calls))
	var others map[string]bool
	for i, call := range calls {
		if of := call[0].Plan; algorithm == "" && of.quick {
			algorithm = of.Live.Algorithm
		}
		names[i] = s.quickNames(call, algorithm, others)
		if names[i] != nil {
			continue
		}
		rest = append(rest, i)
		if others == nil && len(calls) > 1 {
			others = map[string]bool{}
		}
		for _, a := range call {
			for c := range a.Plan.counters {
				if len(calls) > 1 {
					others[s.counter(a, c)] = true
				}
			}
		}
	}
	return names, algorithm, rest
}

// quickNames names the counters of a call; nil where it is not for the quick script.
func (s *Redis) quickNames(call []Request, algorithm string, others map[string]bool) []string {
	if s.general {
		return nil
	}
	for _, a := range call {
		if !a.Plan.quick || a.Plan.Live.Algorithm != algorithm || !a.forQuick() {
			return nil
		}
	}
	names := make([]string, len(call))
	var seen map[string]bool
	if len(call) > 1 {
		seen = make(map[string]bool, len(call))
	}
	for i, a := range call {
		name := s.counter(a, 0)
		if others[name] || seen[name] || s.near.has(name) {
			return nil
		}
		if names[i] = name; seen != nil {
			seen[name] = true
		}
	}
	return names
}

// counter names counter c of what is asked for.
func (s *Redis) counter(a Request, c int) string {
	return s.keys.Counter(s.keys.Partition(a.Key), a.Plan.counters[c].form, a.Key)
}

// add takes a call in.
func (b *quickBatch) add(s *Redis, i int, names []string, calls [][]Request) {
	call := calls[i]
	if at, known := b.shared[names[0]]; known && len(call) == 1 && b.counters[at].Rule == b.rule(s, call[0].Plan) {
		b.counters[at].Units += call[0].Cost
		b.calls = append(b.calls, quickCall{i, at, b.counters[at].Units})
		return
	}
	first := len(b.counters)
	for n, a := range call {
		b.counters = append(b.counters, lua.QuickCounter{Counter: names[n], Rule: b.rule(s, a.Plan), Units: a.Cost,
			More: n < len(call)-1})
		delete(b.shared, names[n])
	}
	b.calls = append(b.calls, quickCall{i, first, call[0].Cost})
	if len(call) == 1 && len(calls) > 1 {
		if b.shared == nil {
			b.shared = make(map[string]int, len(calls))
		}
		b.shared[names[0]] = first
	}
}

// rule gives a plan's rule as the scripts have it, each once.
func (b *quickBatch) rule(s *Redis, p *Plan) *lua.Rule {
	of := &p.counters[0]
	i := slices.Index(b.of, of)
	if i < 0 {
		i = len(b.of)
		b.of, b.rules = append(b.of, of), append(b.rules, s.script(of))
	}
	return b.rules[i]
}

// noteLevels remembers which keys of an answer by the general script were near a level.
func (s *Redis) noteLevels(call []Request, v Verdict) {
	for i, a := range call {
		plan := a.Plan
		if !plan.quick {
			continue
		}
		near := v.Items[i].RetryAfter != 0
		for w, state := range v.Items[i].Windows {
			near = near || state.Used >= plan.counters[0].fresh.fixed.Windows[w].Lowest
		}
		s.near.set(s.counter(a, 0), near)
	}
}
