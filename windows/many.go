package windows

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/lua"
)

// CheckMany answers calls that came at the same time in one step: each as Check
// would, one after the other, and independent of the others. All keys lie in one
// lane. Transitions are those of all calls, in the first verdict.
func (s *Redis) CheckMany(ctx context.Context, calls [][]Ask) ([]Verdict, error) {
	verdicts := make([]Verdict, len(calls))
	todo := make([]int, len(calls))
	for i := range todo {
		todo[i] = i
	}
	for len(todo) > 0 {
		b := newCheckBatch(s, len(todo))
		var taken, later []int
		for _, i := range todo {
			ok, err := b.add(calls[i])
			switch {
			case err != nil:
				return nil, err
			case ok:
				taken = append(taken, i)
			default: // its key is in this batch under another rule: the rules have just changed
				later = append(later, i)
			}
		}
		b.arrange()
		reply, err := lua.Check(ctx, s.redis, b.args)
		if err != nil {
			return nil, err
		}
		for n, i := range taken {
			verdicts[i] = verdictOf(reply.Calls[n])
		}
		verdicts[0].Transitions += reply.Transitions
		todo = later
	}
	return verdicts, nil
}

func verdictOf(call lua.CheckCall) Verdict {
	v := Verdict{Allowed: call.Allowed, Atomic: true, Items: make([]Standing, len(call.Items))}
	for j, it := range call.Items {
		v.Items[j] = standingOf(it.NowMs, it.Windows)
		v.Items[j].RetryAfter = time.Duration(it.RetryMs) * time.Millisecond
	}
	return v
}

// checkBatch puts calls into the shape that check.lua takes, in which each
// partition, rule and counter stands once.
type checkBatch struct {
	store      *Redis
	args       lua.CheckArgs
	partitions map[int]int   // partition → index in args
	rules      map[*Rule]int // rule → index in args
	counters   map[string]int
	ruleOf     []*Rule // counter → its rule
}

func newCheckBatch(s *Redis, calls int) *checkBatch {
	b := &checkBatch{store: s, partitions: map[int]int{}, rules: map[*Rule]int{}, counters: make(map[string]int, calls)}
	b.args.Now = s.now()
	b.args.Calls = make([][]lua.CheckItem, 0, calls)
	b.args.Counters = make([]lua.CheckCounter, 0, calls)
	return b
}

// add takes a call in, if each of its keys is asked for under one rule only.
func (b *checkBatch) add(asks []Ask) (bool, error) {
	items := make([]lua.CheckItem, len(asks))
	for j, a := range asks {
		p := b.store.keys.Partition(a.Key)
		name := b.store.keys.Counter(p, forms[a.Rule.Algorithm], a.Key)
		i, known := b.counters[name]
		if known && b.ruleOf[i] != a.Rule {
			if len(b.args.Calls) == 0 {
				return false, fmt.Errorf("key %s stands under the rules %q and %q in one check", api.Shorten(a.Key), b.ruleOf[i].Name, a.Rule.Name)
			}
			return false, nil
		}
		if !known {
			i = len(b.args.Counters)
			b.counters[name] = i
			b.ruleOf = append(b.ruleOf, a.Rule)
			b.args.Counters = append(b.args.Counters, lua.CheckCounter{Counter: name, Rule: b.rule(a.Rule), Partition: b.partition(p)})
		}
		items[j] = lua.CheckItem{Counter: i, Cost: a.Cost}
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

func (b *checkBatch) rule(r *Rule) int {
	i, known := b.rules[r]
	if !known {
		i = len(b.args.Rules)
		b.rules[r] = i
		b.args.Rules = append(b.args.Rules, b.store.script(r))
	}
	return i
}

func (b *checkBatch) partition(p int) int {
	i, known := b.partitions[p]
	if !known {
		keys := b.store.keys
		i = len(b.args.Partitions)
		b.partitions[p] = i
		b.args.Partitions = append(b.args.Partitions, lua.CheckPartition{Levels: keys.Levels(p), Due: keys.Due(p), Outbox: keys.Outbox(p)})
	}
	return i
}
