package counters

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// maxCheckKeys is how many keys one script call takes. A call ends after the check that reaches this number, because
// Redis answers no other client while the script runs: 20 to 40 ms for so many keys.
const maxCheckKeys = 1024

// Check implements Counter. All keys are in one shard. Package check decides over several shards.
func (s *Redis) Check(ctx context.Context, requests []Request) (Verdict, error) {
	got, err := s.CheckMany(ctx, [][]Request{requests})
	if err != nil {
		return Verdict{}, err
	}
	return got[0], nil
}

// CheckMany answers calls that came at the same time. It answers each as Check does, one
// after the other, and independent of the other calls. All keys are in one shard. The first
// verdict has the transitions of all calls. If it returns an error, it also returns the
// verdicts of the calls that were answered. The verdicts of the other calls have no Items.
func (s *Redis) CheckMany(ctx context.Context, calls [][]Request) (verdicts []Verdict, err error) {
	verdicts = make([]Verdict, len(calls))
	for _, call := range calls {
		for _, a := range call {
			s.noticePlan(a.Plan)
		}
	}
	todo := make([]int, len(calls))
	for i := range todo {
		todo[i] = i
	}
	for err == nil && len(todo) > 0 {
		err = s.retryInPeriod(func() (err error) {
			todo, err = s.checkSome(ctx, calls, todo, verdicts)
			return err
		})
	}
	return verdicts, err
}

// checkSome runs the calls in todo that can share a run, and returns the other calls.
// If the run fails, it returns all of todo. If one call fails after the calls were run
// one by one (checkEach), it returns the error and the other calls.
func (s *Redis) checkSome(ctx context.Context, calls [][]Request, todo []int, verdicts []Verdict) (later []int,
	err error) {
	b := newCheckBatch(s, len(todo))
	var taken []int
	for n, i := range todo {
		if len(b.args.Keys) >= maxCheckKeys {
			later = append(later, todo[n:]...)
			break
		}
		ok, err := b.add(calls[i])
		switch {
		case err != nil:
			return todo, err
		case ok:
			taken = append(taken, i)
		default: // this batch has its key under another plan (the rules have just changed), or has its replay
			later = append(later, i)
		}
	}
	b.arrange()
	reply, err := s.lua.Check(ctx, b.args)
	if redisclient.IsWrongType(err) && len(taken) > 1 {
		return later, s.checkEach(ctx, calls, taken, verdicts)
	}
	if err != nil {
		return todo, err
	}
	for n, i := range taken {
		verdicts[i] = verdictOf(calls[i], reply.Calls[n])
	}
	verdicts[0].Transitions += reply.Transitions
	return later, nil
}

// checkEach runs calls one by one, because one foreign key of a wrong type makes Redis refuse a whole run. It returns
// the first error, and answers the other calls.
func (s *Redis) checkEach(ctx context.Context, calls [][]Request, todo []int, verdicts []Verdict) (first error) {
	for _, i := range todo {
		err := s.retryInPeriod(func() error { // not left to the caller's retryInPeriod, which would not run these again
			_, err := s.checkSome(ctx, calls, []int{i}, verdicts)
			return err
		})
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

func verdictOf(requests []Request, call lua.CheckCall) Verdict {
	v := Verdict{Allowed: call.Allowed, Atomic: true, Replayed: call.Replayed, OtherBody: call.OtherBody,
		Items: make([]windows.KeyState, len(requests))}
	waits := false
	for i, a := range requests {
		v.Items[i] = a.Plan.State(call.Items[i])
		if v.Replayed && v.Allowed { // under other rules its state is the present one, and it would be denied now
			v.Items[i].RetryAfter = 0
		}
		waits = waits || v.Items[i].RetryAfter != 0
	}
	if v.Replayed && !v.Allowed && !waits { // it would be admitted now
		v.Items[0].RetryAfter = time.Millisecond
	}
	return v
}

// checkBatch converts calls to the arguments of check.lua, which have each
// partition, plan and key only once.
type checkBatch struct {
	store      *Redis
	args       lua.CheckArgs
	partitions map[int]int // partition → index in args
	plans      callPlans
	keys       map[string]askedKey
}

// askedKey is a key of the batch. It has only one plan, because another plan can count it in the same keys of Redis.
type askedKey struct {
	plan *windows.Plan
	at   int // index in args
}

func newCheckBatch(s *Redis, calls int) *checkBatch {
	b := &checkBatch{store: s, partitions: make(map[int]int, 1), plans: s.newCallPlans(),
		keys: make(map[string]askedKey, calls)}
	b.args.Now = s.Clock()
	b.args.Calls = make([][]lua.CheckItem, 0, calls)
	b.args.Keys = make([]lua.CheckKey, 0, calls)
	return b
}

// kind returns how the scripts treat the cost.
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

// asks reports whether a call of the batch has the replay of this name. The answer of that call
// must be in Redis before the next call with the same replay.
func (b *checkBatch) asks(name string) bool {
	return slices.ContainsFunc(b.args.Replays, func(m lua.Replay) bool { return m.Name == name })
}

// add adds a call, unless the batch has one of its keys under another plan, or an
// earlier call has the same replay. It reports whether it has added the call.
func (b *checkBatch) add(requests []Request) (bool, error) {
	var name string
	replay := requests[0].Replay
	if replay != nil {
		if name = b.store.replayName(replay, requests[0].Key); b.asks(name) {
			return false, nil
		}
	}
	items := make([]lua.CheckItem, 0, len(requests))
	for _, a := range requests {
		k, known := b.keys[a.Key]
		switch {
		case !known:
			k = b.addKey(a)
		case k.plan == a.Plan && len(a.Values) == 0:
		case len(b.args.Calls) == 0 && k.plan != a.Plan:
			return false, fmt.Errorf("key %s has two rules in one check, one of them %q",
				api.Shorten(a.Key), a.Plan.Rules()[0].Name)
		default: // a run has only one check of a key whose values count
			return false, nil
		}
		items = append(items, lua.CheckItem{Key: k.at, Cost: a.Cost, Kind: a.kind()})
	}
	if replay != nil {
		b.args.Replays = append(b.args.Replays, lua.Replay{Call: len(b.args.Calls), Name: name,
			Fingerprint: replay.Fingerprint, TTLMs: replay.Retention.Milliseconds()})
	}
	b.args.Calls = append(b.args.Calls, items)
	return true, nil
}

func (b *checkBatch) addKey(a Request) askedKey {
	k, p := askedKey{a.Plan, len(b.args.Keys)}, b.store.keys.Partition(a.Key)
	b.keys[a.Key] = k
	b.args.Keys = append(b.args.Keys, lua.CheckKey{Meters: b.store.meters(p, a.Plan.Forms(), a.Key),
		Plan: b.plans.place(a.Plan), Partition: b.partition(p), Values: a.Values})
	return k
}

// arrange puts keys of the same plan and partition together.
func (b *checkBatch) arrange() {
	b.args.Plans = b.plans.list
	if len(b.args.Partitions) == 1 && len(b.args.Plans) == 1 {
		return
	}
	order := make([]int, len(b.args.Keys)) // new place → old
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		x, y := b.args.Keys[i], b.args.Keys[j]
		return cmp.Or(cmp.Compare(x.Partition, y.Partition), cmp.Compare(x.Plan, y.Plan))
	})
	place := make([]int, len(order)) // old place → new
	keys := make([]lua.CheckKey, len(order))
	for to, from := range order {
		place[from], keys[to] = to, b.args.Keys[from]
	}
	b.args.Keys = keys
	for _, call := range b.args.Calls {
		for i := range call {
			call[i].Key = place[call[i].Key]
		}
	}
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
