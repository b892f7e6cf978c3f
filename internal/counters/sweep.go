package counters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// Next is when a partition must be swept next.
type Next struct {
	NowMs int64 // by the clock of the partition's server
	DueMs int64 // when the first of its keys is due, by that clock
}

// NextDue returns, for each of these partitions, when its next key is due. It leaves out
// partitions without such a key, and partitions whose server does not answer. In the second
// case it returns an error and also the results of the other partitions.
func (s *Redis) NextDue(ctx context.Context, parts []int) (map[int]Next, error) {
	pipe := s.redis.Pipeline()
	heads := make(map[int]*redis.ZSliceCmd, len(parts))
	for _, p := range parts {
		heads[p] = pipe.ZRangeWithScores(ctx, s.keys.Due(p), 0, 0)
	}
	_, err := pipe.Exec(ctx)
	next := map[int]Next{}
	var clocks map[int]int64
	var clockErr error
	if someDue(heads) {
		clocks, clockErr = eventlog.Clocks(ctx, s.redis, s.keys)
	}
	for p, head := range heads {
		now, ok := clocks[p]
		if s.Now != nil {
			now = s.Now()
		}
		if z := head.Val(); ok && head.Err() == nil && len(z) > 0 {
			next[p] = Next{now, int64(min(max(z[0].Score, 0), 1<<53))} // foreign data can be infinite
		}
	}
	if err = errors.Join(err, clockErr); err != nil {
		err = fmt.Errorf("reading what is due: %w", err)
	}
	return next, err
}

// someDue reports whether a partition has any key that is due, now or later.
func someDue(heads map[int]*redis.ZSliceCmd) bool {
	for _, head := range heads {
		if len(head.Val()) > 0 {
			return true
		}
	}
	return false
}

// DueRecords returns the fields of up to n records of partition p that are due at the time `until`, in ms, the
// earliest due first. The fields are arguments for Sweep.
func (s *Redis) DueRecords(ctx context.Context, p int, until, n int64) ([]string, error) {
	by := &redis.ZRangeBy{Min: "-inf", Max: strconv.FormatInt(until, 10), Count: n}
	keys, err := s.redis.ZRangeByScore(ctx, s.keys.Due(p), by).Result()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", s.keys.Due(p), err)
	}
	return keys, nil
}

// Postpone makes these records of partition p due after a time.
func (s *Redis) Postpone(ctx context.Context, p int, fields []string, after time.Duration) error {
	now := int64(s.Clock())
	if s.Now == nil {
		clocks, err := eventlog.Clocks(ctx, s.redis, s.keys)
		if err != nil {
			return err
		}
		now = clocks[p]
	}
	due := make([]redis.Z, len(fields))
	for i, field := range fields {
		due[i] = redis.Z{Score: float64(now + after.Milliseconds()), Member: field}
	}
	if err := s.redis.ZAdd(ctx, s.keys.Due(p), due...).Err(); err != nil {
		return fmt.Errorf("postponing records in %s: %w", s.keys.Due(p), err)
	}
	return nil
}

// Levelled returns the fields of the records of partition p that a change of the rules may change: keys at a level,
// and blocks. (Reservations are due too, for as long as they are remembered. They are left out, because there can be
// many more of them.)
func (s *Redis) Levelled(ctx context.Context, p int) ([]string, error) {
	keys, err := s.redis.ZRange(ctx, s.keys.Due(p), 0, -1).Result()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", s.keys.Due(p), err)
	}
	return slices.DeleteFunc(keys, func(field string) bool {
		_, ok := ReservationOf(field)
		return ok
	}), nil
}

// Sweep evaluates records of partition p again, due or not. None of them is of a reservation. It returns
// how many transitions it wrote, and how many corrupt or foreign records it removed.
func (s *Redis) Sweep(ctx context.Context, p int, rules *windows.Rules, fields []string) (transitions, corrupt int64,
	err error) {
	return s.sweep(ctx, p, rules, fields, 0)
}

// sweep is Sweep. If above is not 0, it publishes the decisions again, with versions above that number.
func (s *Redis) sweep(ctx context.Context, p int, rules *windows.Rules, fields []string, above int64) (transitions,
	corrupt int64, err error) {
	if len(fields) == 0 {
		return 0, 0, nil
	}
	s.noticeAll(rules)
	fields, written, err := s.sweepBlocks(ctx, p, rules, fields, above)
	if err != nil || len(fields) == 0 {
		return written, 0, err
	}
	err = s.retryInPeriod(func() error {
		items := make([]sweepItem, 0, len(fields))
		for _, field := range fields {
			items = s.sweepField(items, p, rules, field)
			items[len(items)-1].above = above
		}
		transitions, corrupt, err = s.sweepItems(ctx, p, items)
		return err
	})
	return written + transitions, corrupt, err
}

// sweepItem is a record that is due: the meters of its key, and a plan with only its rule. If the rule was removed,
// the plan has no rule, and the meters' names have the record's field in place of the key.
type sweepItem struct {
	meters []string
	plan   *lua.Plan
	// above: if not 0, its throttle decision must be published again, although nothing about it changed, with a version
	// above this number.
	above int64
}

// sweepItems runs sweep.lua. It is safe to send again.
func (s *Redis) sweepItems(ctx context.Context, p int, items []sweepItem) (transitions, corrupt int64, err error) {
	keys := s.appendLevels(make([]string, 0, 3+len(items)), p)
	args := append(make([]any, 0, 3+2*len(items)), s.Clock().Arg())
	var plans []*lua.Plan
	for _, it := range items {
		keys = append(keys, it.meters...)
		args, plans = append(args, it.above, it.plan.Text()), append(plans, it.plan)
	}
	r := s.lua.Call(ctx, "sweep", plans, keys, args...)
	return r.Integer(), r.Integer(), r.End()
}

// sweepField adds the items for one record. For the record of a shadow rule it adds one item. For the record
// of a key it adds an item for each of the key's rules, that of the rule that decides last. A record moves to the
// other field if its rule has become a shadow, or live, and ends if its rule was removed.
func (s *Redis) sweepField(items []sweepItem, p int, rules *windows.Rules, field string) []sweepItem {
	key, name, shadow := strings.Cut(field, "\n")
	plan := rules.Match(key)
	item := func(i int, of string) sweepItem {
		script, forms := plan.Alone(i, s.clockMs(time.Now().UnixMilli()))
		return sweepItem{meters: s.meters(p, forms, of), plan: script}
	}
	if shadow {
		i := slices.IndexFunc(plan.Rules(), func(r *windows.Rule) bool { return r.Name == name })
		if i < 0 {
			key = field
		}
		return append(items, item(i, key))
	}
	for i, r := range plan.Rules() {
		if r.Shadow {
			items = append(items, item(i, key))
		}
	}
	if plan == nil || plan.Live == nil {
		return append(items, item(-1, key))
	}
	return append(items, item(0, key))
}
