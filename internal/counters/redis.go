package counters

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// Redis is the shared Counter. It also has the operations of workers and sweepers.
// Its client must not retry (MaxRetries: -1; on a Cluster stream.NewCluster), because a
// check that is sent twice charges twice.
type Redis struct {
	redis redis.UniversalClient
	lua   *lua.Server
	keys  *stream.Keys

	// Now replaces Redis's clock in tests; nil means Redis's clock.
	Now func() int64
	// Retention is how long events are kept; default stream.DefaultRetention.
	Retention time.Duration

	changed atomic.Int64                  // in ms: the latest time at which the rules may have changed
	ahead   atomic.Int64                  // in ms: how far Redis's clock was found to be ahead of this machine's
	rules   atomic.Pointer[recordedRules] // nil until RecordRules
}

// New returns a counter that uses the keys of k. Until RecordRules it treats the rules as just changed.
func New(c redis.UniversalClient, k *stream.Keys) *Redis {
	s := &Redis{redis: c, lua: lua.NewServer(c), keys: k}
	s.changed.Store(time.Now().UnixMilli())
	return s
}

// RequireNoRetry returns an error if the client could charge a check twice; see
// redisclient.RequireNoRetry. Call it before checks; folds do not need it.
func (s *Redis) RequireNoRetry() error { return redisclient.RequireNoRetry(s.redis) }

// luaPlan returns a plan for the library, as of now.
func (s *Redis) luaPlan(p *windows.Plan) *lua.Plan {
	now := time.Now().UnixMilli()
	return p.Script(now-s.changed.Load(), s.clockMs(now))
}

// callPlans are the plans of one call for the library, each once.
type callPlans struct {
	store  *Redis
	list   []*lua.Plan
	places map[*windows.Plan]int // in the list
}

func (s *Redis) newCallPlans() callPlans {
	return callPlans{store: s, places: make(map[*windows.Plan]int, 1)}
}

// place returns the place of a plan in the list, and adds the plan if the list does not have it.
func (c *callPlans) place(p *windows.Plan) int {
	i, known := c.places[p]
	if !known {
		i = len(c.list)
		c.places[p], c.list = i, append(c.list, c.store.luaPlan(p))
	}
	return i
}

// clockMs estimates the time of Redis's clock at ms of this machine's clock. If the estimate is in the
// wrong period, the script returns an error, and retryInPeriod runs it again.
func (s *Redis) clockMs(ms int64) int64 {
	if s.Now != nil {
		return s.Now()
	}
	return ms + s.ahead.Load()
}

// Library returns the server that runs the operations of the counter in Redis.
func (s *Redis) Library() *lua.Server { return s.lua }

// Keys returns the names of the keys in Redis.
func (s *Redis) Keys() *stream.Keys { return s.keys }

// maxPeriods is how often a script is run again because a period is over.
const maxPeriods = 8

// retryInPeriod runs do. It runs do again if the script found that the clock of Redis is outside the periods in its
// arguments. The script has written nothing then.
func (s *Redis) retryInPeriod(do func() error) error {
	for n := 0; ; n++ {
		err := do()
		now, over := lua.IsOutOfPeriod(err)
		if !over || n == maxPeriods {
			return err
		}
		s.ahead.Store(now - time.Now().UnixMilli())
	}
}

// UnderPlans runs do, which calls the library with the plans of the requests. It runs do again if the library finds
// that a period of a plan is over.
func (s *Redis) UnderPlans(requests []Request, do func() error) error {
	for _, a := range requests {
		s.noticePlan(a.Plan)
	}
	return s.retryInPeriod(do)
}

// Clock returns Now for the library; 0 if it is nil.
func (s *Redis) Clock() lua.Now {
	if s.Now == nil {
		return 0
	}
	return lua.Now(s.Now())
}

// meters returns the names in Redis of a key's meters.
func (s *Redis) meters(p int, forms []string, key string) []string {
	names := make([]string, len(forms))
	for i, form := range forms {
		names[i] = s.keys.Counter(p, form, key)
	}
	return names
}

// Key returns a key with its meters and its plan, as of now.
func (s *Redis) Key(plan *windows.Plan, key string) lua.Key {
	p := s.keys.Partition(key)
	return lua.Key{Levels: s.keys.Levels(p), Meters: s.meters(p, plan.Forms(), key), Plan: s.luaPlan(plan)}
}

func (s *Redis) partition(p int) lua.CheckPartition {
	return lua.CheckPartition{Levels: s.keys.Levels(p), Due: s.keys.Due(p), Outbox: s.keys.Outbox(p)}
}

// Shards returns the number of shards. A shard can be available while others are not.
// A single server is one shard. On a Cluster, each partition is a shard.
func (s *Redis) Shards() int { return len(eventlog.Shards(s.redis, s.keys.All())) }

// Shard returns the shard of a key, from 0.
func (s *Redis) Shard(key string) int { return s.ShardOf(s.keys.Partition(key)) }

// ShardOf returns the shard of a partition.
func (s *Redis) ShardOf(p int) int {
	if eventlog.IsCluster(s.redis) {
		return p
	}
	return 0
}

// Check implements Counter. All keys are in one shard. Package check decides over several shards.
func (s *Redis) Check(ctx context.Context, requests []Request) (Verdict, error) {
	got, err := s.CheckMany(ctx, [][]Request{requests})
	if err != nil {
		return Verdict{}, err
	}
	return got[0], nil
}

// Peek implements Counter.
func (s *Redis) Peek(ctx context.Context, plan *windows.Plan, key string) (windows.KeyState, error) {
	s.noticePlan(plan)
	var got []lua.CheckResult
	err := s.retryInPeriod(func() (err error) {
		got, err = s.lua.Peek(ctx, s.Clock(), []lua.Key{s.Key(plan, key)})
		return err
	})
	if err != nil {
		return windows.KeyState{}, err
	}
	return plan.State(got[0]), nil
}

// Reset implements Counter. It resets the key under every algorithm. Otherwise the count
// of an earlier algorithm of the rule would count again if the rule went back to it.
func (s *Redis) Reset(ctx context.Context, plan *windows.Plan, key string) (bool, error) {
	p := s.keys.Partition(key)
	var shadows []string
	for _, r := range plan.Shadows {
		shadows = append(shadows, r.Name)
	}
	had := false
	err := s.retryInPeriod(func() (err error) {
		own := s.Key(plan, key)
		had, _, err = s.lua.Reset(ctx, s.partition(p), s.Clock(), s.keys.Holds(p, key), own,
			s.othersOf(key, own.Meters), shadows)
		return err
	})
	return had, err
}

// othersOf returns the names of all meters that a key may have in Redis, of any algorithm, except the given ones.
func (s *Redis) othersOf(key string, meters []string) (others []string) {
	for _, name := range s.meters(s.keys.Partition(key), lua.Forms(), key) {
		if !slices.Contains(meters, name) {
			others = append(others, name)
		}
	}
	return others
}

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

// DueRecords returns the fields of up to n records of partition p that are due by `until`, the
// longest due first. The fields are arguments for Sweep.
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
// how many transitions it wrote, and how many foreign records it removed.
func (s *Redis) Sweep(ctx context.Context, p int, rules *windows.Rules, fields []string) (transitions, forgotten int64,
	err error) {
	return s.sweep(ctx, p, rules, fields, 0)
}

// sweep is Sweep. If above is not 0, it publishes the decisions again, with versions above that number.
func (s *Redis) sweep(ctx context.Context, p int, rules *windows.Rules, fields []string, above int64) (transitions,
	forgotten int64, err error) {
	if len(fields) == 0 {
		return 0, 0, nil
	}
	s.noticeAll(rules)
	fields, written, err := s.sweepBlocks(ctx, p, rules, fields, above)
	if err != nil || len(fields) == 0 {
		return written, 0, err
	}
	err = s.retryInPeriod(func() error {
		items := make([]lua.SweepItem, 0, len(fields))
		for _, field := range fields {
			items = s.sweepField(items, p, rules, field)
			items[len(items)-1].Above = above
		}
		levels, due, outbox := s.keys.Levels(p), s.keys.Due(p), s.keys.Outbox(p)
		transitions, forgotten, err = s.lua.Sweep(ctx, levels, due, outbox, s.Clock(), items)
		return err
	})
	return written + transitions, forgotten, err
}

// sweepField adds the items for one record. For the record of a shadow rule it adds one item. For the record
// of a key it adds an item for each of the key's rules, that of the rule that decides last. A record moves to the
// other field if its rule has become a shadow, or live, and ends if its rule was removed.
func (s *Redis) sweepField(items []lua.SweepItem, p int, rules *windows.Rules, field string) []lua.SweepItem {
	key, name, shadow := strings.Cut(field, "\n")
	end := lua.SweepItem{Meters: []string{s.keys.Counter(p, lua.Form(windows.DefaultAlgorithm), field)}}
	plan := rules.Match(key)
	item := func(i int) lua.SweepItem {
		script, forms := plan.Alone(i, s.clockMs(time.Now().UnixMilli()))
		return lua.SweepItem{Meters: s.meters(p, forms, key), Plan: script}
	}
	if shadow {
		i := slices.IndexFunc(plan.Rules(), func(r *windows.Rule) bool { return r.Name == name })
		if i < 0 {
			return append(items, end)
		}
		return append(items, item(i))
	}
	for i, r := range plan.Rules() {
		if r.Shadow {
			items = append(items, item(i))
		}
	}
	if plan == nil || plan.Live == nil {
		return append(items, end)
	}
	return append(items, item(0))
}

// Throttled returns the keys that are throttled now. A key may come twice if it
// changes meanwhile.
func (s *Redis) Throttled(ctx context.Context) iter.Seq2[api.Throttled, error] {
	return func(yield func(api.Throttled, error) bool) {
		for p := range s.keys.Partitions {
			for r, err := range s.levelRecords(ctx, p) {
				t, ok := parseThrottle(r.field, r.text)
				if (ok || err != nil) && !yield(t, err) || err != nil {
					return
				}
			}
		}
	}
}

// CountThrottled adds the throttled keys of partition p to byRule. It returns how many records it read.
func (s *Redis) CountThrottled(ctx context.Context, p int, byRule map[string]int64) (read int, err error) {
	for r, err := range s.levelRecords(ctx, p) {
		if err != nil {
			return read, err
		}
		read++
		if t, ok := parseThrottle(r.field, r.text); ok {
			byRule[t.Rule]++
		}
	}
	return read, nil
}

// levelRecord is one field of a partition's hash of levels.
type levelRecord struct{ field, text string }

// levelRecords returns the fields of a partition's hash of levels. A field may come twice if it changes meanwhile.
func (s *Redis) levelRecords(ctx context.Context, p int) iter.Seq2[levelRecord, error] {
	return func(yield func(levelRecord, error) bool) {
		it := s.redis.HScan(ctx, s.keys.Levels(p), 0, "", 500).Iterator()
		for it.Next(ctx) {
			field := it.Val()
			if !it.Next(ctx) {
				break
			}
			if !yield(levelRecord{field, it.Val()}, nil) {
				return
			}
		}
		if err := it.Err(); err != nil {
			yield(levelRecord{}, fmt.Errorf("listing %s: %w", s.keys.Levels(p), err))
		}
	}
}
