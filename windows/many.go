package windows

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/lua"
)

// CheckMany answers calls that came at the same time: each as Check would, one after
// the other, and independent of the others. All keys lie in one lane. Transitions are those
// of all calls, in the first verdict. With an error come the verdicts of the calls that
// were answered nevertheless; the others' have no Items.
func (s *Redis) CheckMany(ctx context.Context, calls [][]Request) ([]Verdict, error) {
	verdicts := make([]Verdict, len(calls))
	if err := s.carryCalls(ctx, calls); err != nil {
		return verdicts, err
	}
	todo, err := s.quick(ctx, calls, verdicts)
	if err != nil {
		return verdicts, err
	}
	for len(todo) > 0 {
		b := newCheckBatch(s, len(todo))
		var taken, later []int
		for _, i := range todo {
			ok, err := b.add(calls[i])
			switch {
			case err != nil:
				return verdicts, err
			case ok:
				taken = append(taken, i)
			default: // its key is in this batch under another plan: the rules have just changed
				later = append(later, i)
			}
		}
		b.arrange()
		reply, err := lua.Check(ctx, s.redis, b.args)
		if err != nil {
			return verdicts, err
		}
		for n, i := range taken {
			verdicts[i] = verdictOf(calls[i], reply.Calls[n])
			s.noteLevels(calls[i], verdicts[i])
		}
		verdicts[0].Transitions += reply.Transitions
		todo = later
	}
	return verdicts, nil
}

func verdictOf(requests []Request, call lua.CheckCall) Verdict {
	v := Verdict{Allowed: call.Allowed, Atomic: true, Items: make([]KeyState, len(requests))}
	items := call.Items
	for i, a := range requests {
		n := len(a.Plan.counters)
		v.Items[i], items = a.Plan.state(items[:n]), items[n:]
	}
	return v
}

// checkBatch puts calls into the shape that check.lua takes, in which each
// partition, rule and counter stands once.
type checkBatch struct {
	store      *Redis
	args       lua.CheckArgs
	partitions map[int]int          // partition → index in args
	rules      map[*planCounter]int // what a counter counts → index in args
	counters   map[string]int       // name → index in args
	countedAs  []*planCounter       // index of a counter → what it counts
}

func newCheckBatch(s *Redis, calls int) *checkBatch {
	b := &checkBatch{store: s, partitions: map[int]int{}, rules: map[*planCounter]int{},
		counters: make(map[string]int, calls)}
	b.args.Now = s.now()
	b.args.Calls = make([][]lua.CheckItem, 0, calls)
	b.args.Counters = make([]lua.CheckCounter, 0, calls)
	return b
}

// add takes a call in, if each of its keys is asked for under one plan only.
func (b *checkBatch) add(requests []Request) (bool, error) {
	items := make([]lua.CheckItem, 0, len(requests))
	for _, a := range requests {
		p := b.store.keys.Partition(a.Key)
		for c := range a.Plan.counters {
			of := &a.Plan.counters[c]
			name := b.store.keys.Counter(p, of.form, a.Key)
			i, known := b.counters[name]
			if known && b.countedAs[i] != of {
				if len(b.args.Calls) == 0 {
					return false, fmt.Errorf("key %s stands under two rules in one check, one of them %q",
						api.Shorten(a.Key), a.Plan.Rules()[0].Name)
				}
				return false, nil
			}
			if !known {
				i = len(b.args.Counters)
				b.counters[name] = i
				b.countedAs = append(b.countedAs, of)
				b.args.Counters = append(b.args.Counters, lua.CheckCounter{Counter: name, Rule: b.rule(of),
					Partition: b.partition(p)})
			}
			items = append(items, lua.CheckItem{Counter: i, Cost: a.Cost})
		}
	}
	b.args.Calls = append(b.args.Calls, items)
	return true, nil
}

// arrange puts counters of the same rule and partition together.
func (b *checkBatch) arrange() {
	if len(b.args.Partitions) == 1 && len(b.args.Rules) == 1 {
		return
	}
	order := make([]int, len(b.args.Counters)) // new place → old
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		x, y := b.args.Counters[i], b.args.Counters[j]
		return cmp.Or(cmp.Compare(x.Partition, y.Partition), cmp.Compare(x.Rule, y.Rule))
	})
	place := make([]int, len(order)) // old place → new
	counters := make([]lua.CheckCounter, len(order))
	for to, from := range order {
		place[from], counters[to] = to, b.args.Counters[from]
	}
	b.args.Counters = counters
	for _, call := range b.args.Calls {
		for i := range call {
			call[i].Counter = place[call[i].Counter]
		}
	}
}

func (b *checkBatch) rule(c *planCounter) int {
	i, known := b.rules[c]
	if !known {
		i = len(b.args.Rules)
		b.rules[c] = i
		b.args.Rules = append(b.args.Rules, b.store.script(c))
	}
	return i
}

func (b *checkBatch) partition(p int) int {
	i, known := b.partitions[p]
	if !known {
		i = len(b.args.Partitions)
		b.partitions[p] = i
		b.args.Partitions = append(b.args.Partitions, b.store.partition(p))
	}
	return i
}
