package counters

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// checkRun is one run of check.lua, which answers calls that came at the same time. It has each partition, plan and
// key only once. On a Cluster all keys are in one partition.
type checkRun struct {
	store      *Redis
	partitions []int
	plans      callPlans
	keys       []checkKey
	known      map[string]int // key → index in keys
	calls      []checkCall
	replays    int // how many calls have one
}

// checkKey is a key of the run. It has only one plan, because another plan can count it in the same keys of Redis.
type checkKey struct {
	meters    []string
	plan      *windows.Plan
	place     int // of the plan in plans
	partition int // its index in partitions
	values    []string
}

// checkCall is a call of the run.
type checkCall struct {
	requests []Request
	keys     []int  // of the requests: indexes in the run's keys
	replay   string // the name of its Replay in Redis; empty if it has none
}

func newCheckRun(s *Redis, calls int) *checkRun {
	return &checkRun{store: s, plans: s.newCallPlans(), keys: make([]checkKey, 0, calls),
		known: make(map[string]int, calls), calls: make([]checkCall, 0, calls)}
}

// hasReplay reports whether a call of the run has the replay of this name. The answer of that call
// must be in Redis before the next call with the same replay.
func (b *checkRun) hasReplay(name string) bool {
	return slices.ContainsFunc(b.calls, func(c checkCall) bool { return c.replay == name })
}

// add adds a call, unless the run has one of its keys under another plan, or an
// earlier call has the same replay. It reports whether it has added the call.
func (b *checkRun) add(requests []Request) (bool, error) {
	call := checkCall{requests: requests, keys: make([]int, len(requests))}
	if replay := requests[0].Replay; replay != nil {
		if call.replay = b.store.replayName(replay, requests[0].Key); b.hasReplay(call.replay) {
			return false, nil
		}
	}
	for i, request := range requests {
		k, known := b.known[request.Key]
		switch {
		case !known:
			k = b.addKey(request)
		case b.keys[k].plan == request.Plan && len(request.Values) == 0:
		case len(b.calls) == 0 && b.keys[k].plan != request.Plan:
			return false, fmt.Errorf("key %s has two rules in one check, one of them %q",
				api.Shorten(request.Key), request.Plan.Rules()[0].Name)
		default: // a run has only one check of a key whose values count
			return false, nil
		}
		call.keys[i] = k
	}
	if call.replay != "" {
		b.replays++
	}
	b.calls = append(b.calls, call)
	return true, nil
}

func (b *checkRun) addKey(r Request) int {
	p := b.store.keys.Partition(r.Key)
	partition := slices.Index(b.partitions, p)
	if partition < 0 {
		partition = len(b.partitions)
		b.partitions = append(b.partitions, p)
	}
	k := len(b.keys)
	b.keys = append(b.keys, checkKey{b.store.meters(p, r.Plan.Forms(), r.Key), r.Plan, b.plans.place(r.Plan), partition,
		r.Values})
	b.known[r.Key] = k
	return k
}

// alone reports whether all keys have one plan and one partition. Then the arguments have no sections.
func (b *checkRun) alone() bool { return len(b.partitions) == 1 && len(b.plans.list) == 1 }

// arrange puts keys of the same plan and partition together, because ARGV is shortest then.
func (b *checkRun) arrange() {
	if b.alone() {
		return
	}
	order := make([]int, len(b.keys)) // new place → old
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		x, y := b.keys[i], b.keys[j]
		return cmp.Or(cmp.Compare(x.partition, y.partition), cmp.Compare(x.place, y.place))
	})
	place := make([]int, len(order)) // old place → new
	keys := make([]checkKey, len(order))
	for to, from := range order {
		place[from], keys[to] = to, b.keys[from]
	}
	b.keys = keys
	for _, call := range b.calls {
		for i, k := range call.keys {
			call.keys[i] = place[k]
		}
	}
}

// encode returns the keys and the arguments of check.lua.
func (b *checkRun) encode() (keys []string, args []any) {
	keys = make([]string, 0, 3*len(b.partitions)+len(b.keys)+b.replays)
	for _, p := range b.partitions {
		keys = b.store.appendLevels(keys, p)
	}
	args = append(make([]any, 0, 8+len(b.plans.list)+4*len(b.keys)), b.store.Clock().Arg(),
		len(b.partitions)+16384*(len(b.plans.list)+4096*b.replays))
	args = lua.AppendTexts(args, b.plans.list)
	for i, call := range b.calls {
		if call.replay != "" {
			replay := call.requests[0].Replay
			args = append(args, i+1, replay.Retention.Milliseconds(), replay.Fingerprint)
		}
	}
	for rest := b.keys; len(rest) > 0; {
		first, run := rest[0], 1
		for run < len(rest) && rest[run].place == first.place && rest[run].partition == first.partition {
			run++
		}
		if !b.alone() {
			args = append(args, section(run, first.place, first.partition))
		}
		for _, k := range rest[:run] {
			keys, args = append(keys, k.meters...), appendValues(args, k.values)
		}
		rest = rest[run:]
	}
	last := -1 // the key of the check before
	for _, call := range b.calls {
		if call.replay != "" {
			keys = append(keys, call.replay)
		}
		for i, request := range call.requests {
			args = request.appendTo(args, call.keys[i], last, i < len(call.keys)-1)
			last = call.keys[i]
		}
	}
	return keys, args
}

// appendTo adds a check to the arguments: the letters that describe it (check.lua), and its cost. more: another check
// of the call follows.
func (r Request) appendTo(args []any, key, last int, more bool) []any {
	if r.Cost > 0 {
		switch {
		case r.Mode == api.ModeLook:
			args = append(args, "l")
		case r.Mode == api.ModeCharge:
			args = append(args, "c")
		case r.ChargesDenied():
			args = append(args, "d")
		}
	}
	if key != last+1 {
		args = append(args, "k", key+1)
	}
	if more {
		args = append(args, "+")
	}
	return append(args, r.Cost)
}

// run runs check.lua. It returns the verdicts in the order of the calls, and how many transitions were written. It is
// not safe to send again, because that would charge twice, except if all calls have a replay.
func (b *checkRun) run(ctx context.Context) (verdicts []Verdict, transitions int64, err error) {
	b.arrange()
	keys, args := b.encode()
	r := b.store.lua.Call(ctx, "check", b.plans.list, keys, args...)
	if err := r.Err(); err != nil {
		return nil, 0, err
	}
	transitions = r.Integer()
	outcomes, states := make([]int64, len(b.calls)), make([]lua.KeyState, 0, len(b.keys))
	for i, call := range b.calls {
		outcomes[i] = r.Integer()
		for _, k := range call.keys {
			states = append(states, r.AnswerWithShadows(b.plans.list[b.keys[k].place]))
		}
	}
	if err := r.End(); err != nil {
		return nil, 0, err
	}
	verdicts = make([]Verdict, len(b.calls))
	for i, call := range b.calls {
		verdicts[i] = verdictOf(call.requests, outcomes[i], states)
		states = states[len(call.keys):]
	}
	return verdicts, transitions, nil
}

// verdictOf returns the answer to a call. Its states are the first of the list. outcome is as in the reply of
// check.lua: 0 or 1, and above 1 for a call that was remembered.
func verdictOf(requests []Request, outcome int64, states []lua.KeyState) Verdict {
	v := Verdict{Allowed: outcome%2 == 1, Atomic: true, Replayed: outcome == 2 || outcome == 3, OtherBody: outcome == 4,
		Items: make([]windows.KeyState, len(requests))}
	waits := false
	for i, request := range requests {
		v.Items[i] = request.Plan.State(states[i])
		if v.Replayed && v.Allowed { // the state is of now if the rules have changed, and may deny the call
			v.Items[i].RetryAfter = 0
		}
		waits = waits || v.Items[i].RetryAfter != 0
	}
	if v.Replayed && !v.Allowed && !waits { // a denial needs a wait, although the call would be admitted now
		v.Items[0].RetryAfter = time.Millisecond
	}
	return v
}
