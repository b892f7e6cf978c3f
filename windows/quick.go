package windows

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/lua"
)

// rememberedKeys are keys of which asking a quick script would be in vain: their last check was denied or stood
// at a level (near), or it is for what their logs hold (unfit). It may forget any, and take one key for
// another: both cost time alone.
type rememberedKeys struct {
	seed  maphash.Seed
	slots [4096]atomic.Uint64 // hash of a counter's name
}

func (n *rememberedKeys) slot(counter string) (*atomic.Uint64, uint64) {
	h := maphash.String(n.seed, counter) | 1
	return &n.slots[(h>>32)%uint64(len(n.slots))], h
}

func (n *rememberedKeys) has(counter string) bool {
	slot, h := n.slot(counter)
	return slot.Load() == h
}

func (n *rememberedKeys) set(counter string, remember bool) {
	slot, h := n.slot(counter)
	switch {
	case remember:
		slot.Store(h)
	case slot.Load() == h:
		slot.Store(0)
	}
}

// quickBatch is what is asked of the quick script in one run, in which each counter stands once. Calls that ask
// for one counter are charged together or not at all, and so are those that share others with them.
type quickBatch struct {
	algorithm string // empty: not known yet
	counters  []lua.QuickCounter
	groups    []int // counter → an earlier one that it is charged with, or itself
	calls     []quickCall
	asked     []quickAsked   // by all calls
	places    map[string]int // name → counter; only where several are asked for
	of        []*planCounter // what rules count
	rules     []*lua.Rule
}

// quickCall says where in asked what a call asks for begins.
type quickCall struct{ call, first int }

// quickAsked is a counter, and the units asked of it by a call and those before.
type quickAsked struct {
	counter int
	units   int64
}

// quick answers the calls that the quick script can answer and gives those that remain.
// With an error come those that were answered before.
func (s *Redis) quick(ctx context.Context, calls [][]Request, verdicts []Verdict) (rest []int, err error) {
	var b quickBatch
	for i, call := range calls {
		if b.algorithm == "" {
			b.algorithm = call[0].Plan.quick
		}
		if names := s.quickNames(call, b.algorithm); names == nil || !b.add(s, i, names, calls) {
			rest = append(rest, i)
		}
		if len(b.counters) >= maxQuickCounters || i == len(calls)-1 && len(b.calls) > 0 {
			remain, err := s.askQuick(ctx, &b, calls, verdicts)
			if err != nil {
				return nil, err
			}
			rest = append(rest, remain...)
			b = quickBatch{}
		}
	}
	slices.Sort(rest)
	return rest, nil
}

// askQuick runs the script and gives the calls that it left.
func (s *Redis) askQuick(ctx context.Context, b *quickBatch, calls [][]Request, verdicts []Verdict) (rest []int,
	err error) {
	order, places := b.arrange()
	states, err := lua.Quick(ctx, s.redis, b.algorithm, s.now(), order)
	if err != nil {
		return nil, err
	}
	for i, state := range states {
		if state.NowMs < 0 && (order[i].More || i > 0 && order[i-1].More) {
			s.unfit.set(order[i].Counter, true)
		}
	}
	for _, q := range b.calls {
		asked := b.asked[q.first : q.first+len(calls[q.call])]
		if states[places[asked[0].counter]].NowMs <= 0 {
			rest = append(rest, q.call)
			continue
		}
		s.answeredQuick.Add(1)
		items := make([]KeyState, len(asked))
		for i, a := range asked {
			got := states[places[a.counter]]
			if later := b.counters[a.counter].Units - a.units; later > 0 {
				got.Windows = slices.Clone(got.Windows)
				for w := range got.Windows {
					got.Windows[w].Used -= later
				}
			}
			items[i] = calls[q.call][i].Plan.state([]lua.CheckResult{got})
		}
		verdicts[q.call] = Verdict{Allowed: true, Atomic: true, Items: items}
	}
	return rest, nil
}

// forQuick: nothing but a plain charge of one key, of no more than any limit.
func (r Request) forQuick() bool {
	return r.Cost > 0 && r.Cost <= MaxLimit && (r.Mode == "" || r.Mode == api.ModeTake) && r.Idempotency == nil
}

// quickNames names the counters of a call that may be answered by the quick script; nil of others. It
// charges keys under one rule each, without shadows, none of which was near a level the last time.
func (s *Redis) quickNames(call []Request, algorithm string) []string {
	if s.general {
		return nil
	}
	for _, a := range call {
		if a.Plan.quick == "" || a.Plan.quick != algorithm || !a.forQuick() {
			return nil
		}
	}
	names := make([]string, len(call))
	for i, a := range call {
		if names[i] = s.counter(a, 0); s.near.has(names[i]) || len(call) > 1 && s.isUnfit(names[i]) {
			return nil
		}
	}
	return names
}

// isUnfit says whether the quick script has left a group for what the log of this counter holds (marks of
// reservations, say). It is tried again now and then.
func (s *Redis) isUnfit(name string) bool {
	if !s.unfit.has(name) {
		return false
	}
	if rand.IntN(8) > 0 {
		return true
	}
	s.unfit.set(name, false)
	return false
}

// counter names counter c of what is asked for.
func (s *Redis) counter(a Request, c int) string {
	return s.keys.Counter(s.keys.Partition(a.Key), a.Plan.counters[c].form, a.Key)
}

// add takes a call in. It does not where this run or the call itself has a counter under another rule, as
// the rules have just changed.
func (b *quickBatch) add(s *Redis, i int, names []string, calls [][]Request) bool {
	call, q, before := calls[i], quickCall{i, len(b.asked)}, len(b.counters)
	if left := len(calls) - i; b.calls == nil {
		b.counters, b.groups = make([]lua.QuickCounter, 0, left), make([]int, 0, left)
		b.calls, b.asked = make([]quickCall, 0, left), make([]quickAsked, 0, left)
	}
	if b.places == nil && len(calls)+len(call) > 2 {
		b.places = make(map[string]int, min(len(calls)*len(call), maxQuickCounters))
	}
	for n, name := range names {
		at, known := b.places[name]
		if rule := b.rule(s, call[n].Plan); !known {
			at = len(b.counters)
			b.counters, b.groups = append(b.counters, lua.QuickCounter{Counter: name, Rule: rule}), append(b.groups, at)
			if b.places != nil {
				b.places[name] = at
			}
		} else if b.counters[at].Rule != rule {
			for _, c := range b.counters[before:] {
				delete(b.places, c.Counter)
			}
			b.counters, b.groups, b.asked = b.counters[:before], b.groups[:before], b.asked[:q.first]
			return false
		}
		b.asked = append(b.asked, quickAsked{counter: at})
	}
	for n, a := range b.asked[q.first:] {
		b.counters[a.counter].Units += call[n].Cost
	}
	first := b.asked[q.first].counter
	for n := range b.asked[q.first:] {
		a := &b.asked[q.first+n]
		a.units = b.counters[a.counter].Units
		b.join(first, a.counter)
	}
	b.calls = append(b.calls, q)
	return true
}

// join makes two counters be charged together.
func (b *quickBatch) join(x, y int) {
	if x, y = b.group(x), b.group(y); x != y {
		b.groups[max(x, y)] = min(x, y)
	}
}

// group gives the first of the counters that are charged with one.
func (b *quickBatch) group(at int) int {
	for b.groups[at] != at {
		b.groups[at] = b.groups[b.groups[at]]
		at = b.groups[at]
	}
	return at
}

// arrange gives the counters with those of a group together, and where each stands among them.
func (b *quickBatch) arrange() (counters []lua.QuickCounter, places []int) {
	places = make([]int, len(b.counters))
	if len(b.asked) == len(b.calls) { // of one key each
		for i := range places {
			places[i] = i
		}
		return b.counters, places
	}
	order := make([]int, len(b.counters))
	for i := range order {
		order[i], b.groups[i] = i, b.group(i)
	}
	slices.SortStableFunc(order, func(x, y int) int { return b.groups[x] - b.groups[y] })
	counters = make([]lua.QuickCounter, len(order))
	for i, at := range order {
		counters[i], places[at] = b.counters[at], i
		counters[i].More = i+1 < len(order) && b.groups[order[i+1]] == b.groups[at]
	}
	return counters, places
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
		if plan.quick == "" {
			continue
		}
		near := v.Items[i].RetryAfter != 0
		for w, state := range v.Items[i].Windows {
			near = near || state.Used >= plan.counters[0].fresh.fixed.Windows[w].Lowest
		}
		s.near.set(s.counter(a, 0), near)
	}
}
