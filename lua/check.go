package lua

import "context"

// CheckPartition names the keys of one partition that checks touch.
type CheckPartition struct{ Levels, Due, Outbox string }

// CheckKey is one key to check, and its meters' keys in Redis.
type CheckKey struct {
	Meters    []string
	Plan      int      // index into CheckArgs.Plans
	Partition int      // index into CheckArgs.Partitions
	Values    []string // one per meter of its plan that counts values; empty: it has none
}

// CheckItem is one check. A Cost of 0 charges nothing, and asks whether there is room for one unit.
type CheckItem struct {
	Key  int // index into CheckArgs.Keys
	Cost int64
	Kind CheckKind
}

// CheckKind says when a check's cost is charged.
type CheckKind int

// The kinds of checks. kindLetters has the letter of each kind after Take, as in check.lua.
const (
	Take         CheckKind = iota // charged if the whole call is allowed
	Look                          // never charged
	Charge                        // always charged, denied if over the limit; all checks of its call are of this kind
	ChargeDenied                  // like Take, but also charged if the call is denied
)

var kindLetters = [...]string{"", "l", "c", "d"}

// CheckArgs has the calls that one run answers. Each call is charged as a whole or
// not at all. On a Cluster all keys are in one partition.
type CheckArgs struct {
	Now        Now
	Partitions []CheckPartition
	Plans      []*Plan
	Keys       []CheckKey // each once; ARGV is shortest if keys of one plan and partition follow each other
	Calls      [][]CheckItem
	Replays    []Replay // for the calls that have one; no name twice
}

// WindowState is the state of a key in one window. The times are ms since 1970,
// 0 if nothing is used.
type WindowState struct {
	Used       int64
	NextFreeMs int64 // when the first of the used units is free again
	EmptyMs    int64 // when all of them are free again
}

// CheckResult is the answer to one item.
type CheckResult struct {
	NowMs   int64
	RetryMs int64 // 0: it is admitted; -1: it can never be
	Windows []WindowState
	InForce []int64 // the result of hook in_force for the key (plan.lua)
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
	// Replayed: the call was answered before, and this is the same answer.
	Replayed bool
	// OtherBody: its key was used for a call with another fingerprint, and nothing was decided.
	OtherBody bool
	Items     []CheckResult
}

// Check runs check.lua. It is not safe to send again, because that would charge twice, except if
// all calls are in Replays.
func (s *Caller) Check(ctx context.Context, a CheckArgs) (CheckReply, error) {
	keys, args := a.encode()
	items, last := 0, -1
	for _, call := range a.Calls {
		items += len(call)
		for i, it := range call {
			args = it.appendTo(args, last, i < len(call)-1)
			last = it.Key
		}
	}
	r := s.call(ctx, "check", a.Plans, keys, args)
	if r.err != nil {
		return CheckReply{}, r.err
	}
	out := CheckReply{Transitions: r.integer(), Calls: make([]CheckCall, len(a.Calls))}
	results := make([]CheckResult, items)
	for i, call := range a.Calls {
		n := r.integer()
		got := CheckCall{Allowed: n%2 == 1, Replayed: n == 2 || n == 3, OtherBody: n == 4,
			Items: results[:len(call):len(call)]}
		results = results[len(call):]
		for j, it := range call {
			got.Items[j] = r.answerWithShadows(a.Plans[a.Keys[it.Key].Plan])
		}
		out.Calls[i] = got
	}
	return out, r.end()
}

// encode returns the keys, and the arguments before those of the checks.
func (a *CheckArgs) encode() (keys []string, args []any) {
	keys = make([]string, 0, 3*len(a.Partitions)+len(a.Keys)+len(a.Replays))
	for _, p := range a.Partitions {
		keys = append(keys, p.Levels, p.Due, p.Outbox)
	}
	args = append(make([]any, 0, 8+len(a.Plans)+4*len(a.Keys)), a.Now.arg(),
		len(a.Partitions)+16384*(len(a.Plans)+4096*len(a.Replays)))
	args = appendTexts(args, a.Plans)
	for _, m := range a.Replays {
		args = append(args, m.Call+1, m.TTLMs, m.Fingerprint)
	}
	alone := len(a.Plans) == 1 && len(a.Partitions) == 1
	for rest := a.Keys; len(rest) > 0; {
		first, run := rest[0], 1
		for run < len(rest) && rest[run].Plan == first.Plan && rest[run].Partition == first.Partition {
			run++
		}
		if !alone {
			args = append(args, section(run, first.Plan+1, first.Partition+1))
		}
		for _, k := range rest[:run] {
			keys, args = append(keys, k.Meters...), appendValues(args, k.Values)
		}
		rest = rest[run:]
	}
	for _, m := range a.Replays {
		keys = append(keys, m.Name)
	}
	return keys, args
}

// appendTo adds a check to the arguments. `last` is the key of the check before. more: another check of the call
// follows.
func (it CheckItem) appendTo(args []any, last int, more bool) []any {
	if it.Kind != Take && it.Cost > 0 {
		args = append(args, kindLetters[it.Kind])
	}
	if it.Key != last+1 {
		args = append(args, "k", it.Key+1)
	}
	if more {
		args = append(args, "+")
	}
	return append(args, it.Cost)
}

func appendValues(args []any, values []string) []any {
	for _, v := range values {
		args = append(args, v)
	}
	return args
}
