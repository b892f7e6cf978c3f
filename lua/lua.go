// Package lua owns the scripts that run inside Redis: it embeds them, composes
// each from the shared prelude, the algorithms it needs and one operation, and
// runs them with typed arguments and replies.
//
// Read prelude.lua, then totals.lua and sliding-log.lua (how one algorithm counts), then
// fold.lua and check.lua (the two that change a count), then levels.lua.
package lua

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

//go:embed *.lua
var files embed.FS

// parts: algorithm → its files, in the order in which they are composed.
var parts = map[string][]string{
	"sliding-log":      {"totals", "sliding-log"},
	"sliding-log-zset": {"totals", "sliding-log-zset"},
	"sliding-counter":  {"aligned", "sliding-counter"},
	"sliding-buckets":  {"sliding-buckets"},
	"fixed-window":     {"aligned", "fixed-window"},
}

// Algorithms lists the algorithms that there are scripts for, the default first.
var Algorithms = []string{"sliding-log", "sliding-log-zset", "sliding-counter", "sliding-buckets", "fixed-window"}

// Rule is what the scripts are told of a rule.
type Rule struct {
	Algorithm string
	Shadow    bool
	// Tune is one number for the algorithm: for the logs how often they are trimmed
	// and their expiry renewed, in ms, 0 at each write; for buckets how many.
	Tune int64
	// SpanMs is the longest window.
	SpanMs int64
	// Spec is the rule's levels as text; levels.lua says how.
	Spec    string
	Windows []Window
}

// Window is one window of a Rule, in milliseconds and units.
type Window struct{ Ms, Limit, Lowest int64 }

func (r *Rule) appendTo(args []any) []any {
	args = append(args, r.Algorithm, r.Shadow, r.Tune, r.SpanMs, r.Spec, len(r.Windows))
	for _, w := range r.Windows {
		args = append(args, w.Ms, w.Limit, w.Lowest)
	}
	return args
}

// Now stands in for the server's clock in tests, in ms; 0 means the server's.
type Now int64

func (n Now) arg() any {
	if n == 0 {
		return ""
	}
	return int64(n)
}

// FoldGroup is one or more events of one counter with the same count.
type FoldGroup struct {
	Counter string
	Count   int64
	IDs     []string // rising
	// Given are the ids that the producers gave the events, nil where they gave none.
	Given []string
}

// FoldRule is a rule and the groups of its counters; those of one counter
// stand together, in time order.
type FoldRule struct {
	Rule   *Rule
	Groups []FoldGroup
}

// FoldArgs is one batch of one partition.
type FoldArgs struct {
	Events, Levels, Due, Outbox, IDs string
	Now                              Now
	Group                            string
	RememberMs                       int64 // how long ids are remembered
	Rules                            []FoldRule
}

// FoldReply counts events: folded, too late for every window, already counted
// by somebody, sent before by their producer; transitions; and counters that were
// found unreadable.
type FoldReply struct{ Folded, Late, Gone, Again, Transitions, Unreadable int64 }

// Fold runs fold.lua. It is safe to send again: what was counted is not counted twice.
func Fold(ctx context.Context, c redis.Scripter, a FoldArgs) (FoldReply, error) {
	groups, ids := 0, 0
	for _, r := range a.Rules {
		groups += len(r.Groups)
		for _, g := range r.Groups {
			ids += len(g.IDs)
		}
	}
	keys := append(make([]string, 0, 5+groups), a.Events, a.Levels, a.Due, a.Outbox, a.IDs)
	args := append(make([]any, 0, 4+16*len(a.Rules)+2*groups+ids), a.Now.arg(), a.Group, a.RememberMs, len(a.Rules))
	algorithms := make([]string, 0, 1)
	for _, r := range a.Rules {
		args = r.Rule.appendTo(append(args, len(r.Groups)))
		algorithms = with(algorithms, r.Rule.Algorithm)
	}
	for _, r := range a.Rules {
		for _, g := range r.Groups {
			keys = append(keys, g.Counter)
			args = append(args, g.Count, len(g.IDs))
			for i, id := range g.IDs {
				if g.Given != nil {
					id += " " + g.Given[i]
				}
				args = append(args, id)
			}
		}
	}
	n, err := eval(ctx, c, "fold", algorithms, keys, args, 6)
	if err != nil {
		return FoldReply{}, err
	}
	return FoldReply{n[0], n[1], n[2], n[3], n[4], n[5]}, nil
}

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
}

// CheckArgs holds calls that one run answers; each is charged whole or not at
// all. On a Cluster all lie in one partition.
type CheckArgs struct {
	Now        Now
	Partitions []CheckPartition
	Rules      []*Rule
	Counters   []CheckCounter // each once; shortest where those of one rule and partition stand together
	Calls      [][]CheckItem
}

// WindowUse is where a counter stands in one window. The times are ms since
// 1970, 0 where nothing is used: when the first units come back and when all have.
type WindowUse struct{ Used, BackMs, EmptyMs int64 }

// CheckResult is the answer to one item.
type CheckResult struct {
	NowMs   int64
	RetryMs int64 // 0: it is admitted; -1: it can never be
	Windows []WindowUse
}

// CheckReply is the answer to all calls.
type CheckReply struct {
	Transitions int64
	Calls       []CheckCall
}

// CheckCall is the answer to one call.
type CheckCall struct {
	Allowed bool
	Items   []CheckResult
}

// Check runs check.lua. It is not safe to send again: that would charge twice.
func Check(ctx context.Context, c redis.Scripter, a CheckArgs) (CheckReply, error) {
	keys := make([]string, 0, 3*len(a.Partitions)+len(a.Counters))
	for _, p := range a.Partitions {
		keys = append(keys, p.Levels, p.Due, p.Outbox)
	}
	args := append(make([]any, 0, 16+12*len(a.Rules)+5*len(a.Counters)), a.Now.arg(), len(a.Partitions), len(a.Rules))
	algorithms := make([]string, 0, 1)
	for _, r := range a.Rules {
		args = r.appendTo(args)
		algorithms = with(algorithms, r.Algorithm)
	}
	run := 0
	for i, c := range a.Counters {
		keys = append(keys, c.Counter)
		run++
		if next := i + 1; next == len(a.Counters) || a.Counters[next].Rule != c.Rule || a.Counters[next].Partition != c.Partition {
			args = append(args, run, c.Rule+1, c.Partition+1)
			run = 0
		}
	}
	windows := func(it CheckItem) int { return len(a.Rules[a.Counters[it.Counter].Rule].Windows) }
	want, items := 1, 0
	for _, call := range a.Calls {
		want++
		items += len(call)
		for i, it := range call {
			number := it.Counter + 1
			if i < len(call)-1 {
				number = -number
			}
			args = append(args, it.Cost, number)
			want += 2 + 3*windows(it)
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
		got := CheckCall{Allowed: n[0] == 1, Items: results[:len(call):len(call)]}
		n, results = n[1:], results[len(call):]
		for j, it := range call {
			w := windows(it)
			got.Items[j] = CheckResult{NowMs: n[0], RetryMs: n[1], Windows: uses(n[2:], w)}
			n = n[2+3*w:]
		}
		reply.Calls[i] = got
	}
	return reply, nil
}

// Peek runs peek.lua: it gives the clock and where the counter stands in each window.
func Peek(ctx context.Context, c redis.Scripter, counter string, now Now, rule *Rule) (int64, []WindowUse, error) {
	args := rule.appendTo([]any{now.arg()})
	n, err := eval(ctx, c, "peek", []string{rule.Algorithm}, []string{counter}, args, 1+3*len(rule.Windows))
	if err != nil {
		return 0, nil, err
	}
	return n[0], uses(n[1:], len(rule.Windows)), nil
}

// SweepItem is a key that is due; Rule is nil where none matches it any more.
type SweepItem struct {
	Counter string
	Rule    *Rule
}

// Sweep runs sweep.lua over keys of one partition. It gives the transitions written,
// and how many records were none of ours and are forgotten.
func Sweep(ctx context.Context, c redis.Scripter, levels, due, outbox string, now Now, items []SweepItem) (transitions, forgotten int64, err error) {
	keys := append(make([]string, 0, 3+len(items)), levels, due, outbox)
	args := append(make([]any, 0, 1+16*len(items)), now.arg())
	algorithms := make([]string, 0, 1)
	for _, it := range items {
		keys = append(keys, it.Counter)
		if it.Rule == nil {
			args = append(args, 0)
			continue
		}
		args = it.Rule.appendTo(append(args, 1))
		algorithms = with(algorithms, it.Rule.Algorithm)
	}
	n, err := eval(ctx, c, "sweep", algorithms, keys, args, 2)
	if err != nil {
		return 0, 0, err
	}
	return n[0], n[1], nil
}

// Reset runs reset.lua over all counters that a key may have; it reports whether there was one.
func Reset(ctx context.Context, c redis.Scripter, levels, due, outbox string, now Now, counters ...string) (had bool, transitions int64, err error) {
	n, err := eval(ctx, c, "reset", nil, append([]string{levels, due, outbox}, counters...), []any{now.arg()}, 2)
	if err != nil {
		return false, 0, err
	}
	return n[0] > 0, n[1], nil
}

// Refund runs refund.lua: it gives n units of a counter back and tells how many
// that were, and where the counter stands. It is not safe to send again.
func Refund(ctx context.Context, c redis.Scripter, p CheckPartition, counter string, now Now, units int64, rule *Rule) (given int64, r CheckResult, err error) {
	args := rule.appendTo([]any{now.arg(), units})
	n, err := eval(ctx, c, "refund", []string{rule.Algorithm}, []string{p.Levels, p.Due, p.Outbox, counter}, args, 2+3*len(rule.Windows))
	if err != nil {
		return 0, CheckResult{}, err
	}
	return n[0], CheckResult{NowMs: n[1], Windows: uses(n[2:], len(rule.Windows))}, nil
}

// Bury runs bury.lua: it acknowledges events that cannot be counted and keeps
// each, with the reason, in the dead stream. It gives how many were buried.
func Bury(ctx context.Context, c redis.Scripter, events, dead, group string, keep int64, letters []DeadLetter) (int64, error) {
	args := append(make([]any, 0, 2+3*len(letters)), group, keep)
	for _, l := range letters {
		args = append(args, l.ID, l.Reason, l.Body)
	}
	n, err := eval(ctx, c, "bury", nil, []string{events, dead}, args, 1)
	if err != nil {
		return 0, err
	}
	return n[0], nil
}

// DeadLetter is an event that could not be counted.
type DeadLetter struct{ ID, Reason, Body string }

// Retire runs retire.lua: it removes the consumer named ("" for none) and those
// idle for longer than idleMs (0 for none), where they hold nothing pending.
func Retire(ctx context.Context, c redis.Scripter, events, group, consumer string, idleMs int64) (int64, error) {
	n, err := eval(ctx, c, "retire", nil, []string{events}, []any{group, consumer, idleMs}, 1)
	if err != nil {
		return 0, err
	}
	return n[0], nil
}

// Gap runs gap.lua: it gives how many events were found trimmed unread since
// the last call, -1 where the server does not keep the numbers.
func Gap(ctx context.Context, c redis.Scripter, events, dead, group string, keep int64) (int64, error) {
	n, err := eval(ctx, c, "gap", nil, []string{events, dead}, []any{group, keep}, 1)
	if err != nil {
		return 0, err
	}
	return n[0], nil
}

// Lease runs lease.lua: it takes, keeps, or with ms 0 gives back a lease, and
// reports whether owner holds it now.
func Lease(ctx context.Context, c redis.Scripter, key, owner string, ms int64) (bool, error) {
	n, err := eval(ctx, c, "lease", nil, []string{key}, []any{owner, ms}, 1)
	if err != nil {
		return false, err
	}
	return n[0] == 1, nil
}

func uses(n []int64, windows int) []WindowUse {
	out := make([]WindowUse, windows)
	for i := range out {
		out[i] = WindowUse{n[3*i], n[3*i+1], n[3*i+2]}
	}
	return out
}

// eval sends one script by its hash, and its text where the server does not
// have it. want is the number of integers its reply must have.
func eval(ctx context.Context, c redis.Scripter, op string, algorithms, keys []string, args []any, want int) ([]int64, error) {
	v, err := script(op, algorithms).Run(ctx, c, keys, args...).Result()
	if err != nil {
		return nil, fmt.Errorf("%s script: %w", op, err)
	}
	if n, ok := v.(int64); ok {
		v = []any{n}
	}
	list, ok := v.([]any)
	if !ok || len(list) != want {
		return nil, fmt.Errorf("%s script: reply %v, expected %d integers", op, v, want)
	}
	out := make([]int64, want)
	for i, e := range list {
		if out[i], ok = e.(int64); !ok {
			return nil, fmt.Errorf("%s script: reply has %v (%T) at %d, expected an integer", op, e, e, i)
		}
	}
	return out, nil
}

var scripts sync.Map // operation/algorithms → *redis.Script

func script(op string, algorithms []string) *redis.Script {
	name := op + "/" + strings.Join(algorithms, "+")
	if s, ok := scripts.Load(name); ok {
		return s.(*redis.Script)
	}
	s, _ := scripts.LoadOrStore(name, redis.NewScript(Source(op, algorithms...)))
	return s.(*redis.Script)
}

// with adds a name to a sorted list that holds each once.
func with(list []string, name string) []string {
	i, found := slices.BinarySearch(list, name)
	if found {
		return list
	}
	return slices.Insert(list, i, name)
}

// Source composes the text of one operation: the prelude, the algorithms, the
// levels where it writes any, and the operation itself. Comments stay: Redis
// compiles a script once.
func Source(op string, algorithms ...string) string {
	names := []string{"prelude"}
	for _, a := range algorithms {
		for _, part := range parts[a] {
			if !slices.Contains(names, part) {
				names = append(names, part)
			}
		}
	}
	switch op {
	case "fold", "check", "sweep", "reset", "refund":
		names = append(names, "levels")
	}
	var b strings.Builder
	for _, name := range append(names, op) {
		text, err := files.ReadFile(name + ".lua")
		if err != nil {
			panic(errors.Join(errors.New("no script file for "+name), err)) // a name in this package's own code
		}
		b.Write(text)
	}
	return b.String()
}
