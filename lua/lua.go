// Package lua owns the scripts that run inside Redis: it embeds them, composes
// each of the algorithms it needs and one operation, with the files that these
// include, and runs them with typed arguments and replies.
//
// It is for tools that work on counters below the level of rules; services want package
// windows or client/direct. Times are milliseconds, units integers below 2^53. An error of
// Fold, Sweep, Lease or DeadLetters may be answered by sending the same again; after one
// of Check or Refund it is unknown whether units were charged.
package lua

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// IsOutOfPeriod gives the server's clock in ms where a script was handed other periods of the calendar
// than that stands in. Nothing was written.
func IsOutOfPeriod(err error) (nowMs int64, ok bool) {
	if err == nil {
		return 0, false
	}
	_, text, found := strings.Cut(err.Error(), "PERIOD ")
	if !found {
		return 0, false
	}
	digits := text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
	nowMs, err = strconv.ParseInt(digits, 10, 64)
	return nowMs, err == nil
}

// Now stands in for the server's clock in tests, in ms; 0 means the server's.
type Now int64

func (n Now) arg() any {
	if n == 0 {
		return ""
	}
	return int64(n)
}

// Counter is one counter of a key, and what it counts.
type Counter struct {
	Name   string
	Levels string // the hash of levels of its partition; only Peek needs it
	Rule   *Rule
}

// Peek runs peek.lua: it gives where their keys stand in each counter.
func Peek(ctx context.Context, c redis.Scripter, now Now, counters []Counter) ([]CheckResult, error) {
	names, args, algorithms, want := encode(nil, []any{now.arg()}, counters)
	keys := make([]string, 0, 2*len(names))
	for i, name := range names {
		keys = append(keys, name, counters[i].Levels)
	}
	n, err := eval(ctx, c, "peek", algorithms, keys, args, want)
	if err != nil {
		return nil, err
	}
	return results(n, counters), nil
}

// encode adds the counters of a key to the arguments of a script that takes them
// last. want is how many integers tell where the key stands in them.
func encode(keys []string, args []any, counters []Counter) (_ []string, _ []any, algorithms []string, want int) {
	for _, c := range counters {
		keys, args = append(keys, c.Name), c.Rule.appendTo(args)
		algorithms = c.Rule.addAlgorithms(algorithms)
		want += 1 + 3*len(c.Rule.Windows)
	}
	return keys, args, algorithms, want
}

func results(n []int64, counters []Counter) []CheckResult {
	out := make([]CheckResult, len(counters))
	for i, c := range counters {
		out[i] = CheckResult{NowMs: n[0], Windows: windowStates(n[1:], len(c.Rule.Windows))}
		n = n[1+3*len(c.Rule.Windows):]
	}
	return out
}

// SweepItem is a record that is due: the counter of its key and its rule alone. Rule
// is nil where that is gone; then Counter has the record's field in the key's place.
type SweepItem struct {
	Counter string
	Rule    *Rule
	// Moved: the rule may just have become a shadow, or live, and have its record in
	// the other field yet.
	Moved bool
	// Restate: its throttle decision is to be published again, though nothing about it changed.
	Restate bool
}

// Sweep runs sweep.lua over keys of one partition. It gives the transitions written,
// and how many records were corrupt and are removed.
func Sweep(
	ctx context.Context, c redis.Scripter, levels, due, outbox string, now Now, items []SweepItem,
) (transitions, corrupt int64, err error) {
	keys := append(make([]string, 0, 3+len(items)), levels, due, outbox)
	args := append(make([]any, 0, 1+16*len(items)), now.arg())
	algorithms := make([]string, 0, 1)
	for _, it := range items {
		keys = append(keys, it.Counter)
		if it.Rule == nil {
			args = append(args, 0)
			continue
		}
		kind := 1
		switch {
		case it.Restate:
			kind = 3
		case it.Moved:
			kind = 2
		}
		args = it.Rule.appendTo(append(args, kind))
		algorithms = it.Rule.addAlgorithms(algorithms)
	}
	n, err := eval(ctx, c, "sweep", algorithms, keys, args, 2)
	if err != nil {
		return 0, 0, err
	}
	return n[0], n[1], nil
}

// Reset runs reset.lua over the holds of a key, the counters that it is counted in, others that it may
// have, and the names of the shadow rules that match it; it reports whether there was a counter.
func Reset(
	ctx context.Context, c redis.Scripter, p CheckPartition, now Now, holds string, counters []Counter,
	others, shadows []string,
) (had bool, transitions int64, err error) {
	keys, args, algorithms, _ := encode([]string{p.Levels, p.Due, p.Outbox, holds}, []any{now.arg(), len(counters)},
		counters)
	for _, name := range shadows {
		args = append(args, name)
	}
	n, err := eval(ctx, c, "reset", algorithms, append(keys, others...), args, 2)
	if err != nil {
		return false, 0, err
	}
	return n[0] > 0, n[1], nil
}

// Refund runs refund.lua: it gives n units of a key's counters back and tells how many
// that were, and where the key stands. It is not safe to send again.
func Refund(
	ctx context.Context, c redis.Scripter, p CheckPartition, now Now, units int64, counters []Counter,
) (refunded int64, r []CheckResult, err error) {
	keys := []string{p.Levels, p.Due, p.Outbox}
	keys, args, algorithms, want := encode(keys, []any{now.arg(), units}, counters)
	n, err := eval(ctx, c, "refund", algorithms, keys, args, 1+want)
	if err != nil {
		return 0, nil, err
	}
	return n[0], results(n[1:], counters), nil
}

// DeadLetter is an entry that could not be counted or published: its ID, why, and
// what stood in it.
type DeadLetter struct{ ID, Reason, Body string }

// DeadLetterSource says where entries are taken from, and how. One with a Stream
// alone is of entries that have left the stream already.
type DeadLetterSource struct{ Stream, how, group string }

// AcknowledgeEvents takes events out of what a consumer group has pending.
func AcknowledgeEvents(events, group string) DeadLetterSource {
	return DeadLetterSource{events, "ack", group}
}

// DeleteEntries deletes entries of a stream.
func DeleteEntries(stream string) DeadLetterSource { return DeadLetterSource{stream, "delete", ""} }

// DeadLetters runs deadletter.lua: it takes entries out of their stream and keeps
// each that was still there in the dead stream, which holds about `keep`. It gives
// per letter whether it was written. It is safe to send again.
func DeadLetters(
	ctx context.Context, c redis.Scripter, from DeadLetterSource, dead string, keep int64, letters []DeadLetter,
) ([]bool, error) {
	args := append(make([]any, 0, 3+3*len(letters)), cmp.Or(from.how, "none"), from.group, keep)
	for _, l := range letters {
		args = append(args, l.ID, l.Reason, l.Body)
	}
	n, err := eval(ctx, c, "deadletter", nil, []string{from.Stream, dead}, args, len(letters))
	if err != nil {
		return nil, err
	}
	written := make([]bool, len(letters))
	for i := range written {
		written[i] = n[i] == 1
	}
	return written, nil
}

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

func windowStates(n []int64, windows int) []WindowState {
	out := make([]WindowState, windows)
	for i := range out {
		out[i] = WindowState{n[3*i], n[3*i+1], n[3*i+2]}
	}
	return out
}

// eval sends one script by its hash, and its text where the server does not
// have it. want is the number of integers its reply must have.
func eval(
	ctx context.Context, c redis.Scripter, op string, algorithms, keys []string, args []any, want int,
) ([]int64, error) {
	if slices.Contains(algorithms, Mixed) {
		keys, args = withParts(keys, args)
	}
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
