package windows

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/lua"
)

// A script call ends after the check that brings it to so many counters, as Redis answers nobody meanwhile:
// some 20 to 40 ms.
const (
	maxQuickCounters = 4096
	maxCheckCounters = 1024
)

// CheckMany answers calls that came at the same time: each as Check would, one after
// the other, and independent of the others; first those that the quick script answers. All
// keys lie in one shard. Transitions are those of all calls, in the first verdict. With an
// error come the verdicts of the calls that were answered nevertheless; the others' have no Items.
func (s *Redis) CheckMany(ctx context.Context, calls [][]Request) ([]Verdict, error) {
	verdicts := make([]Verdict, len(calls))
	s.noticeRules(calls)
	if err := s.carryCalls(ctx, calls); err != nil {
		return verdicts, err
	}
	todo, err := s.quick(ctx, s.followCalls(calls), verdicts)
	if err != nil {
		return verdicts, err
	}
	for moves := 0; len(todo) > 0; {
		todo, err = s.checkSome(ctx, s.followCalls(calls), todo, verdicts)
		switch {
		case err == nil:
		case moves < maxMoves && s.outOfPeriod(err):
			moves++
		case moves < maxMoves && lua.IsCarried(err):
			moves++
			if err := s.carriedMeanwhile(ctx, calls, todo); err != nil {
				return verdicts, err
			}
		default:
			return verdicts, err
		}
	}
	return verdicts, nil
}

// checkSome asks the general script of those calls in todo that can share a run, and
// gives the others. With an error it gives all of todo.
func (s *Redis) checkSome(ctx context.Context, calls [][]Request, todo []int, verdicts []Verdict) (later []int,
	err error) {
	b := newCheckBatch(s, len(todo))
	var taken []int
	for n, i := range todo {
		if len(b.args.Counters) >= maxCheckCounters {
			later = append(later, todo[n:]...)
			break
		}
		ok, err := b.add(calls[i])
		switch {
		case err != nil:
			return todo, err
		case ok:
			taken = append(taken, i)
		default: // its key is in this batch under another plan (the rules have just changed), or its idempotency key is
			later = append(later, i)
		}
	}
	b.arrange()
	reply, err := lua.Check(ctx, s.redis, b.args)
	if err != nil {
		return todo, err
	}
	for n, i := range taken {
		verdicts[i] = verdictOf(calls[i], reply.Calls[n])
		s.noteLevels(calls[i], verdicts[i])
	}
	verdicts[0].Transitions += reply.Transitions
	return later, nil
}

// carriedMeanwhile is called where a key of some calls was carried to another algorithm after
// this process had looked: it carries it back, or follows it where this process has older rules.
func (s *Redis) carriedMeanwhile(ctx context.Context, calls [][]Request, some []int) error {
	var keys []string
	of := make([][]Request, 0, len(some))
	for _, i := range some {
		of = append(of, calls[i])
		for _, a := range calls[i] {
			keys = append(keys, a.Key)
		}
	}
	if err := s.carryCalls(ctx, of); err != nil {
		return err
	}
	return s.noteMoved(ctx, keys)
}

func verdictOf(requests []Request, call lua.CheckCall) Verdict {
	v := Verdict{Allowed: call.Allowed, Atomic: true, Replayed: call.Replayed, OtherBody: call.OtherBody,
		Items: make([]KeyState, len(requests))}
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
	keys       map[string]askedKey
}

// askedKey is a key of the batch. Its counters stand in args one after the other. Another plan can count
// it in the same keys of Redis under other names, so there is one.
type askedKey struct {
	plan  *Plan
	first int // index of its first counter in args
}

func newCheckBatch(s *Redis, calls int) *checkBatch {
	b := &checkBatch{store: s, partitions: map[int]int{}, rules: map[*planCounter]int{},
		keys: make(map[string]askedKey, calls)}
	b.args.Now = s.now()
	b.args.Calls = make([][]lua.CheckItem, 0, calls)
	b.args.Counters = make([]lua.CheckCounter, 0, calls)
	return b
}

// kind is what becomes of the cost, as the scripts take it.
func (r Request) kind() lua.CheckKind {
	switch {
	case r.Mode == api.ModeLook:
		return lua.Look
	case r.Mode == api.ModeCharge:
		return lua.Charge
	case r.ChargesDenied():
		return lua.ChargeDenied
	}
	return lua.Take
}

// asks says whether a call of the batch has the same idempotency key: its answer must stand
// in Redis before the next one of that key is asked for.
func (b *checkBatch) asks(name string) bool {
	return slices.ContainsFunc(b.args.Remember, func(m lua.Idempotency) bool { return m.Name == name })
}

// IdempotencyName is the name in Redis of what is remembered under an idempotency key. On one
// server the key alone chooses its partition. On a Cluster it stands where the first key of
// the call does, as one script can touch no other: there the same key with another first
// key can be another memory.
func (s *Redis) IdempotencyName(key, first string) string {
	if eventlog.IsCluster(s.redis) {
		return s.keys.Idempotency(s.keys.Partition(first), key)
	}
	return s.keys.Idempotency(s.keys.Partition(key), key)
}

// add takes a call in, if each of its keys is asked for under one plan only, and its
// idempotency key is no earlier one's.
func (b *checkBatch) add(requests []Request) (bool, error) {
	remembered, key := "", requests[0].Idempotency
	if key != nil {
		if remembered = b.store.IdempotencyName(key.Key, requests[0].Key); b.asks(remembered) {
			return false, nil
		}
	}
	items := make([]lua.CheckItem, 0, len(requests))
	for _, a := range requests {
		k, known := b.keys[a.Key]
		switch {
		case !known:
			k = b.addKey(a)
		case k.plan == a.Plan:
		case len(b.args.Calls) == 0:
			return false, fmt.Errorf("key %s stands under two rules in one check, one of them %q",
				api.Shorten(a.Key), a.Plan.Rules()[0].Name)
		default:
			return false, nil
		}
		for c := range a.Plan.counters {
			items = append(items, lua.CheckItem{Counter: k.first + c, Cost: a.Cost, Kind: a.kind()})
		}
	}
	if key != nil {
		b.args.Remember = append(b.args.Remember, lua.Idempotency{Call: len(b.args.Calls), Name: remembered,
			Fingerprint: key.Fingerprint, TTLMs: key.Retention.Milliseconds()})
	}
	b.args.Calls = append(b.args.Calls, items)
	return true, nil
}

func (b *checkBatch) addKey(a Request) askedKey {
	k, p := askedKey{a.Plan, len(b.args.Counters)}, b.store.keys.Partition(a.Key)
	b.keys[a.Key] = k
	for c := range a.Plan.counters {
		of := &a.Plan.counters[c]
		b.args.Counters = append(b.args.Counters, lua.CheckCounter{Counter: b.store.keys.Counter(p, of.form, a.Key),
			Rule: b.rule(of), Partition: b.partition(p)})
	}
	return k
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
