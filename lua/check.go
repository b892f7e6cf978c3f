package lua

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// CheckPartition names the keys of one partition that checks touch.
type CheckPartition struct{ Levels, Due, Outbox string }

// CheckCounter is one counter that is asked for.
type CheckCounter struct {
	Counter   string
	Rule      int // index into CheckArgs.Rules
	Partition int // index into CheckArgs.Partitions
}

// CheckItem is one check; a Cost of 0 charges nothing and asks for one unit.
type CheckItem struct {
	Counter int // index into CheckArgs.Counters
	Cost    int64
	Kind    CheckKind
}

// CheckKind says what becomes of a check's cost.
type CheckKind int

// The kinds of checks. Those after Take stand in check.lua too.
const (
	Take         CheckKind = iota // charged where the whole call is allowed
	Look                          // never charged
	Charge                        // always charged, denied where it went over; all checks of its call are of this kind
	ChargeDenied                  // like Take, and charged also where the call is denied
)

// Idempotency is the memory of one call's answer; see idempotency.lua.
type Idempotency struct {
	Call        int    // index into CheckArgs.Calls; the list is in their order
	Name        string // of its key in Redis
	Fingerprint string // of what is asked for, without spaces
	TTLMs       int64  // how long a new answer is remembered; 0: it is not, an older one is found
}

// CheckArgs holds calls that one run answers; each is charged whole or not at
// all. On a Cluster all lie in one partition.
type CheckArgs struct {
	Now        Now
	Partitions []CheckPartition
	Rules      []*Rule
	Counters   []CheckCounter // each once; shortest where those of one rule and partition stand together
	Calls      [][]CheckItem
	Remember   []Idempotency // of the calls that have a key, no name twice
}

// WindowState is the state of a counter in one window. The times are ms since 1970,
// 0 where nothing is used.
type WindowState struct {
	Used       int64
	NextFreeMs int64 // when the first of the used units is free again
	ResetMs    int64 // when all of them are
}

// CheckResult is the answer to one item.
type CheckResult struct {
	NowMs   int64
	RetryMs int64 // 0: it is admitted; -1: it can never be
	Windows []WindowState
	// ShadowMs has, for each window that does not decide, what RetryMs would have been.
	ShadowMs []int64
}

// CheckReply is the answer to all calls.
type CheckReply struct {
	Transitions int64
	Calls       []CheckCall
}

// CheckCall is the answer to one call.
type CheckCall struct {
	Allowed bool
	// Replayed: it was answered before, and this is that answer.
	Replayed bool
	// OtherBody: its key was used for a call with another fingerprint, and nothing was decided.
	OtherBody bool
	Items     []CheckResult
}

// Check runs check.lua. It is not safe to send again: that would charge twice, but for calls
// that all have a place in Remember.
func Check(ctx context.Context, c redis.Scripter, a CheckArgs) (CheckReply, error) {
	keys, args, algorithms := a.encode()
	rule := func(it CheckItem) *Rule { return a.Rules[a.Counters[it.Counter].Rule] }
	want, items := 1, 0
	for _, call := range a.Calls {
		want++
		items += len(call)
		for i, it := range call {
			args = it.appendTo(args, i < len(call)-1)
			want += 2 + 3*len(rule(it).Windows) + rule(it).shadows()
		}
	}
	n, err := eval(ctx, c, "check", algorithms, keys, args, want)
	if err != nil {
		return CheckReply{}, err
	}
	reply := CheckReply{Transitions: n[0], Calls: make([]CheckCall, len(a.Calls))}
	n = n[1:]
	results := make([]CheckResult, items)
	for i, call := range a.Calls {
		got := CheckCall{Allowed: n[0]%2 == 1, Replayed: n[0] == 2 || n[0] == 3, OtherBody: n[0] == 4,
			Items: results[:len(call):len(call)]}
		n, results = n[1:], results[len(call):]
		for j, it := range call {
			w, shadows := len(rule(it).Windows), rule(it).shadows()
			got.Items[j] = CheckResult{NowMs: n[0], RetryMs: n[1], Windows: windowStates(n[2:], w)}
			n = n[2+3*w:]
			got.Items[j].ShadowMs, n = n[:shadows:shadows], n[shadows:]
		}
		reply.Calls[i] = got
	}
	return reply, nil
}

// encode gives the keys, and the arguments that stand before the checks.
func (a *CheckArgs) encode() (keys []string, args []any, algorithms []string) {
	keys = make([]string, 0, 3*len(a.Partitions)+len(a.Counters)+len(a.Remember))
	for _, p := range a.Partitions {
		keys = append(keys, p.Levels, p.Due, p.Outbox)
	}
	args = append(make([]any, 0, 16+12*len(a.Rules)+5*len(a.Counters)), a.Now.arg(), len(a.Partitions), len(a.Rules))
	algorithms = make([]string, 0, 1)
	for _, r := range a.Rules {
		args = r.appendTo(args)
		algorithms = r.addAlgorithms(algorithms)
	}
	if len(a.Remember) > 0 {
		algorithms = with(algorithms, "idempotency")
		args = append(args, len(a.Remember))
	}
	for _, m := range a.Remember {
		args = append(args, m.Call+1, m.TTLMs, m.Fingerprint)
	}
	run := 0
	for i, c := range a.Counters {
		keys = append(keys, c.Counter)
		run++
		next := i + 1
		if next == len(a.Counters) || a.Counters[next].Rule != c.Rule || a.Counters[next].Partition != c.Partition {
			args = append(args, run, c.Rule+1, c.Partition+1)
			run = 0
		}
	}
	for _, m := range a.Remember {
		keys = append(keys, m.Name)
	}
	return keys, args, algorithms
}

// appendTo adds a check; more: another of the same call follows.
func (it CheckItem) appendTo(args []any, more bool) []any {
	number := it.Counter + 1
	if more {
		number = -number
	}
	if it.Kind == Take || it.Cost == 0 {
		return append(args, it.Cost, number)
	}
	return append(args, -it.Cost, number, int(it.Kind))
}
