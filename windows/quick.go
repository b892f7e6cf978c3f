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

// quickBatch is what is asked of the quick script in one run, in which each counter
// stands once.
type quickBatch struct {
	of       []*planCounter // what the counters of each rule count
	rules    []lua.QuickRule
	calls    []quickCall
	counters map[string]quickCall // name → where it stands; only of a run of several
}

// quickCall says where the counter of a call stands, and the units asked of it by the
// call and those before.
type quickCall struct {
	call, rule, counter int
	units               int64
}

// quick answers the calls that the quick script can answer and gives those that remain.
// Where it fails none was answered.
func (s *Redis) quick(ctx context.Context, calls [][]Request, verdicts []Verdict) (rest []int, err error) {
	var b quickBatch
	names, rest := s.forQuick(calls)
	for i, name := range names {
		if name != "" {
			b.add(s, i, len(calls), name, calls[i][0])
		}
	}
	if len(b.calls) == 0 {
		return rest, nil
	}
	states, err := lua.Quick(ctx, s.redis, b.rules[0].Rule.Algorithm, s.now(), b.rules)
	if err != nil {
		return nil, err
	}
	firsts := make([]int, len(b.rules)) // rule → its first counter in states
	for r := 1; r < len(firsts); r++ {
		firsts[r] = firsts[r-1] + len(b.rules[r-1].Counters)
	}
	for _, q := range b.calls {
		got := states[firsts[q.rule]+q.counter]
		if got.NowMs == 0 {
			rest = append(rest, q.call)
			continue
		}
		s.answeredQuick.Add(1)
		if later := b.rules[q.rule].Counters[q.counter].Units - q.units; later > 0 {
			own := make([]lua.WindowState, len(got.Windows))
			for w, state := range got.Windows {
				own[w] = lua.WindowState{Used: state.Used - later, NextFreeMs: state.NextFreeMs, ResetMs: state.ResetMs}
			}
			got.Windows = own
		}
		verdicts[q.call] = Verdict{Allowed: true, Atomic: true,
			Items: []KeyState{calls[q.call][0].Plan.state([]lua.CheckResult{got})}}
	}
	slices.Sort(rest)
	return rest, nil
}

// forQuick: nothing but a plain charge of one key.
func (r Request) forQuick() bool {
	return r.Cost > 0 && (r.Mode == "" || r.Mode == api.ModeTake) && r.Idempotency == nil
}

// forQuick says which calls may be answered by the quick script, by the name of their
// counter, and which not. Those charge one key under one rule without shadows, which
// was not near a level the last time; all calls that ask for one counter go one way,
// so that they are answered in order.
func (s *Redis) forQuick(calls [][]Request) (names []string, rest []int) {
	names = make([]string, len(calls))
	algorithm := "" // of the run
	var others map[string]bool
	for i, call := range calls {
		if plan := call[0].Plan; len(call) == 1 && call[0].forQuick() && plan.quick && !s.general &&
			(algorithm == "" || plan.Live.Algorithm == algorithm) {
			name := s.counter(call[0], 0)
			if !s.near.has(name) {
				names[i], algorithm = name, plan.Live.Algorithm
				continue
			}
		}
		rest = append(rest, i)
		for _, a := range call {
			for c := range a.Plan.counters {
				if others == nil {
					others = map[string]bool{}
				}
				others[s.counter(a, c)] = true
			}
		}
	}
	if len(others) == 0 || len(rest) == len(calls) {
		return names, rest
	}
	rest = rest[:0]
	for i, name := range names {
		if name == "" || others[name] {
			names[i], rest = "", append(rest, i)
		}
	}
	return names, rest
}

// counter names counter c of what is asked for.
func (s *Redis) counter(a Request, c int) string {
	return s.keys.Counter(s.keys.Partition(a.Key), a.Plan.counters[c].form, a.Key)
}

// add takes a call in. The map is only made where calls may share a counter.
func (b *quickBatch) add(s *Redis, call, calls int, counter string, a Request) {
	at, known := b.counters[counter]
	if known && b.of[at.rule] == &a.Plan.counters[0] {
		units := &b.rules[at.rule].Counters[at.counter].Units
		*units += a.Cost
		b.calls = append(b.calls, quickCall{call, at.rule, at.counter, *units})
		return
	}
	of, r := &a.Plan.counters[0], 0
	for r < len(b.of) && b.of[r] != of {
		r++
	}
	if r == len(b.of) {
		b.of, b.rules = append(b.of, of), append(b.rules, lua.QuickRule{Rule: s.script(of)})
	}
	rule := &b.rules[r]
	at = quickCall{call, r, len(rule.Counters), a.Cost}
	rule.Counters = append(rule.Counters, lua.QuickCounter{Counter: counter, Units: a.Cost})
	b.calls = append(b.calls, at)
	if calls > 1 {
		if b.counters == nil {
			b.counters = make(map[string]quickCall, calls)
		}
		b.counters[counter] = at
	}
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
