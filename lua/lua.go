// Package lua owns the scripts that run inside Redis: it embeds them, composes each
// script of one operation, the algorithms that it needs, and the files that these
// include, and runs the scripts with typed arguments and replies.
//
// It is for tools that work on counters below the level of rules. Services use package
// windows or client/direct. Times are milliseconds, units are integers below 2^53. After an
// error of Fold, Sweep or Lock the same call may be sent again; DeadLetters says when. After an error of Check or
// Refund it is unknown whether units were charged.
package lua

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// IsOutOfPeriod reports whether a script found that the server's clock is outside the periods
// that it was given. It returns the time of that clock, in ms. The script wrote nothing.
func IsOutOfPeriod(err error) (nowMs int64, ok bool) {
	var answered redis.Error
	if !errors.As(err, &answered) {
		return 0, false
	}
	digits, found := strings.CutPrefix(answered.Error(), "PERIOD ")
	if !found {
		return 0, false
	}
	nowMs, err = strconv.ParseInt(digits, 10, 64)
	return nowMs, err == nil
}

// Now is the time in ms that replaces the server's clock in tests; 0 means the server's clock.
type Now int64

func (n Now) arg() any {
	if n == 0 {
		return ""
	}
	return int64(n)
}

// Peek runs peek.lua: it returns the states of keys.
func (s *Caller) Peek(ctx context.Context, now Now, list []Key) ([]CheckResult, error) {
	keys, args := make([]string, 0, 2*len(list)), append(make([]any, 0, 2+len(list)), now.arg())
	plans := make([]*Plan, len(list))
	for i, k := range list {
		keys = append(append(keys, k.Levels), k.Meters...)
		args = append(args, k.Plan.Text())
		plans[i] = k.Plan
	}
	r := s.call(ctx, "peek", plans, keys, args)
	out := make([]CheckResult, len(list))
	for i, k := range list {
		out[i] = r.state(k.Plan)
	}
	return out, r.end()
}

// SweepItem is a record that is due: the meters of its key, and a plan with only its rule. The plan
// is nil if the rule was removed. Then Meters has one name, with the record's field in the key's place.
type SweepItem struct {
	Meters []string
	Plan   *Plan
	// Above: if not 0, its throttle decision must be published again, although nothing about it changed, with a version
	// above this number.
	Above int64
}

// Sweep runs sweep.lua for keys of one partition. It returns how many transitions it wrote,
// and how many records were corrupt.
func (s *Caller) Sweep(ctx context.Context, levels, due, outbox string, now Now, items []SweepItem,
) (transitions, corrupt int64, err error) {
	keys := append(make([]string, 0, 3+len(items)), levels, due, outbox)
	args := append(make([]any, 0, 3+2*len(items)), now.arg())
	var plans []*Plan
	for _, it := range items {
		keys = append(keys, it.Meters...)
		if it.Plan == nil {
			args = append(args, 0)
			continue
		}
		args, plans = append(args, 1+it.Above, it.Plan.Text()), append(plans, it.Plan)
	}
	r := s.call(ctx, "sweep", plans, keys, args)
	return r.integer(), r.integer(), r.end()
}

// Reset runs reset.lua for the holds of a key, its meters, others that it may have,
// and the names of the shadow rules that match it. had is whether any of its keys existed.
func (s *Caller) Reset(ctx context.Context, p CheckPartition, now Now, holds string, key Key,
	others, shadows []string,
) (had bool, transitions int64, err error) {
	keys := slices.Concat([]string{p.Levels, p.Due, p.Outbox, holds}, key.Meters, others)
	args := []any{now.arg(), key.Plan.Text()}
	for _, name := range shadows {
		args = append(args, name)
	}
	r := s.call(ctx, "reset", []*Plan{key.Plan}, keys, args)
	return r.integer() > 0, r.integer(), r.end()
}

// Refund runs refund.lua: it gives units of a key back, and returns how many
// those were, and the state of the key. It is not safe to send again.
func (s *Caller) Refund(ctx context.Context, p CheckPartition, now Now, units int64, key Key,
) (refunded int64, state CheckResult, err error) {
	keys := append([]string{p.Levels, p.Due, p.Outbox}, key.Meters...)
	args := []any{now.arg(), units, key.Plan.Text()}
	r := s.call(ctx, "refund", []*Plan{key.Plan}, keys, args)
	return r.integer(), r.state(key.Plan), r.end()
}

// DeadLetter is an entry that could not be counted or published: its ID, the reason,
// and its content. Delete: it is deleted, too, after it was acknowledged.
type DeadLetter struct {
	ID, Reason, Body string
	Delete           bool
}

// DeadLetterSource says where entries are taken from, and how.
type DeadLetterSource struct{ stream, group, levels string }

// AcknowledgeEvents acknowledges events that are pending in a consumer group. levels counts them.
func AcknowledgeEvents(events, group, levels string) DeadLetterSource {
	return DeadLetterSource{events, group, levels}
}

// DeleteEntries deletes entries of a stream.
func DeleteEntries(stream string) DeadLetterSource { return DeadLetterSource{stream, "", stream} }

// DeadLetters runs deadletter.lua: it takes entries out of their stream, and adds each
// entry that was still there to the dead stream, which keeps about `keep` letters; 0: none is
// added. It returns for each letter whether its entry was still there. It is safe to send again.
func (s *Caller) DeadLetters(ctx context.Context, from DeadLetterSource, dead string, keep int64, letters []DeadLetter,
) ([]bool, error) {
	args := append(make([]any, 0, 2+4*len(letters)), from.group, keep)
	for _, l := range letters {
		args = append(args, l.ID, l.Reason, l.Body, l.Delete)
	}
	r := s.call(ctx, "deadletter", nil, []string{from.stream, dead, from.levels}, args)
	there := make([]bool, len(letters))
	for i := range there {
		there[i] = r.integer() == 1
	}
	return there, r.end()
}

// Retire runs retire.lua: it removes the named consumer ("" for none) and the consumers that have been
// idle for longer than idleMs (0 for none), if they have no pending events. It returns how many it removed.
// The streams are of one server, on a Cluster of one slot.
func (s *Caller) Retire(ctx context.Context, events []string, group, consumer string, idleMs int64) (int64, error) {
	r := s.call(ctx, "retire", nil, events, []any{group, consumer, idleMs})
	return r.integer(), r.end()
}

// GapPartition names the events of a partition, their dead letters, and the levels, which count events.
type GapPartition struct{ Events, Dead, Levels string }

// Gap runs gap.lua for partitions of one server, on a Cluster for one partition. It returns how many events of each
// were found to be trimmed uncounted since the last call, -1 if the server does not have the numbers.
func (s *Caller) Gap(ctx context.Context, partitions []GapPartition, group string, keep int64) ([]int64, error) {
	keys := make([]string, 0, 3*len(partitions))
	for _, p := range partitions {
		keys = append(keys, p.Events, p.Dead, p.Levels)
	}
	r := s.call(ctx, "gap", nil, keys, []any{group, keep})
	return r.integers(len(partitions)), r.end()
}
