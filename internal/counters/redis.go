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

// Redis is the shared Counter, and what workers and sweepers change it with.
// Its client must not retry (MaxRetries: -1; on a Cluster stream.NewCluster): a
// check that is sent twice charges twice.
type Redis struct {
	redis redis.UniversalClient
	lua   *lua.Server
	keys  *stream.Keys

	// Now stands in for Redis's clock in tests; nil means Redis's own.
	Now func() int64
	// Remember is how long the ids that producers give events are remembered;
	// default stream.DefaultRetention.
	Remember time.Duration

	changed atomic.Int64                  // ms: when the rules became what they are, at the latest
	ahead   atomic.Int64                  // ms: how far Redis's clock was found to be ahead of this machine's
	rules   atomic.Pointer[recordedRules] // nil until RecordRules
}

// NewRedis counts in the keys of k. Until RecordRules it treats the rules as new.
func New(c redis.UniversalClient, k *stream.Keys) *Redis {
	s := &Redis{redis: c, lua: lua.NewServer(c), keys: k}
	s.changed.Store(time.Now().UnixMilli())
	return s
}

// RequireNoRetry refuses a client that would charge a check twice; see
// redisclient.RequireNoRetry. Who checks must ask it first, folds need not.
func (s *Redis) RequireNoRetry() error { return redisclient.RequireNoRetry(s.redis) }

// luaPlan gives a plan as the library takes it now.
func (s *Redis) luaPlan(p *windows.Plan) *lua.Plan {
	now := time.Now().UnixMilli()
	return p.Script(now-s.changed.Load(), s.clockMs(now))
}

// clockMs estimates the clock of Redis. If the estimate is in another period, the script says so
// (retryInPeriod).
func (s *Redis) clockMs(ms int64) int64 {
	if s.Now != nil {
		return s.Now()
	}
	return ms + s.ahead.Load()
}

// Library runs the operations of the counter in Redis.
func (s *Redis) Library() *lua.Server { return s.lua }

// Keys names the keys in Redis.
func (s *Redis) Keys() *stream.Keys { return s.keys }

// maxPeriods is how often a script is asked again because a period is over.
const maxPeriods = 8

// retryInPeriod runs do. It runs do again if the script found that the clock of Redis is in another period than
// the one that it was handed: then it has written nothing.
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

// UnderPlans runs do, a call of the library about what requests ask for, under their plans. It runs do again if that
// finds that a period of a plan is over.
func (s *Redis) UnderPlans(requests []Request, do func() error) error {
	for _, a := range requests {
		s.noticePlan(a.Plan)
	}
	return s.retryInPeriod(do)
}

// Clock is what Now says, for the library.
func (s *Redis) Clock() lua.Now {
	if s.Now == nil {
		return 0
	}
	return lua.Now(s.Now())
}

// meters gives the names in Redis of a key's meters.
func (s *Redis) meters(p int, forms []string, key string) []string {
	names := make([]string, len(forms))
	for i, form := range forms {
		names[i] = s.keys.Counter(p, form, key)
	}
	return names
}

// Key gives a key, and what it is counted by now.
func (s *Redis) Key(plan *windows.Plan, key string) lua.Key {
	p := s.keys.Partition(key)
	return lua.Key{Levels: s.keys.Levels(p), Meters: s.meters(p, plan.Forms(), key), Plan: s.luaPlan(plan)}
}

func (s *Redis) partition(p int) lua.CheckPartition {
	return lua.CheckPartition{Levels: s.keys.Levels(p), Due: s.keys.Due(p), Outbox: s.keys.Outbox(p)}
}

// Shards is how many shards there are: servers, or parts of one, that may answer or
// not independently of each other. A single server is one shard, and each
// partition of a Cluster is.
func (s *Redis) Shards() int { return len(eventlog.Shards(s.redis, s.keys.All())) }

// Shard is the shard that answers for a key, from 0.
func (s *Redis) Shard(key string) int { return s.ShardOf(s.keys.Partition(key)) }

// ShardOf is the shard that answers for a partition.
func (s *Redis) ShardOf(p int) int {
	if eventlog.IsCluster(s.redis) {
		return p
	}
	return 0
}

// Check implements Counter. All keys lie in one shard; package check decides over several.
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

// Reset implements Counter. It forgets the key under every algorithm: what one
// that the rule had before has left would count again if the rule went back to it.
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

// othersOf names what a key may have in Redis besides some meters: those of other algorithms.
func (s *Redis) othersOf(key string, meters []string) (others []string) {
	for _, name := range s.meters(s.keys.Partition(key), lua.Forms(), key) {
		if !slices.Contains(meters, name) {
			others = append(others, name)
		}
	}
	return others
}

// Next is when a partition is to be swept again.
type Next struct {
	NowMs int64 // by the clock of the server that holds it
	DueMs int64 // when the first of its keys must be looked at, by that clock
}

// NextDue gives, for each of these partitions, when its next key must be looked at. Partitions
// with none are left out, and those whose server does not answer; then the error
// says why, and the others are there all the same.
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

// someDue reports whether a partition has any key that must be looked at, now or later.
func someDue(heads map[int]*redis.ZSliceCmd) bool {
	for _, head := range heads {
		if len(head.Val()) > 0 {
			return true
		}
	}
	return false
}

// DueRecords gives up to n records of partition p that are to be looked at by `until`, the
// longest due first: each by its field, as Sweep takes it.
func (s *Redis) DueRecords(ctx context.Context, p int, until, n int64) ([]string, error) {
	by := &redis.ZRangeBy{Min: "-inf", Max: strconv.FormatInt(until, 10), Count: n}
	keys, err := s.redis.ZRangeByScore(ctx, s.keys.Due(p), by).Result()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", s.keys.Due(p), err)
	}
	return keys, nil
}

// Levelled gives the records of partition p that a change of the rules may change: what stands at a level, and
// blocks. (What was reserved is due too, for as long as its end is remembered, and may be much more.)
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

// Sweep looks again at records of partition p, due or not, none of a reservation. It gives how many
// transitions that wrote, and how many foreign records it removed.
func (s *Redis) Sweep(ctx context.Context, p int, rules *windows.Rules, fields []string) (transitions, forgotten int64,
	err error) {
	return s.sweep(ctx, p, rules, fields, false)
}

func (s *Redis) sweep(ctx context.Context, p int, rules *windows.Rules, fields []string, restate bool) (transitions,
	forgotten int64, err error) {
	if len(fields) == 0 {
		return 0, 0, nil
	}
	s.noticeAll(rules)
	fields, written, err := s.sweepBlocks(ctx, p, rules, fields, restate)
	if err != nil || len(fields) == 0 {
		return written, 0, err
	}
	err = s.retryInPeriod(func() error {
		items := make([]lua.SweepItem, 0, len(fields))
		for _, field := range fields {
			items = s.sweepField(items, p, rules, field)
			own := &items[len(items)-1]
			own.Restate = restate && own.Plan != nil
		}
		levels, due, outbox := s.keys.Levels(p), s.keys.Due(p), s.keys.Outbox(p)
		transitions, forgotten, err = s.lua.Sweep(ctx, levels, due, outbox, s.Clock(), items)
		return err
	})
	return written + transitions, forgotten, err
}

// sweepField adds what is to be done for one record: that of a shadow rule by itself,
// and with that of a key all rules that it has, its own last. A record passes to the other field
// where its rule has become a shadow or live, and ends where that is gone.
func (s *Redis) sweepField(items []lua.SweepItem, p int, rules *windows.Rules, field string) []lua.SweepItem {
	key, name, shadow := strings.Cut(field, "\n")
	end := lua.SweepItem{Meters: []string{s.keys.Counter(p, lua.Form(windows.DefaultAlgorithm), field)}}
	plan := rules.Match(key)
	item := func(i int, moved bool) lua.SweepItem {
		script, forms := plan.Alone(i, s.clockMs(time.Now().UnixMilli()))
		return lua.SweepItem{Meters: s.meters(p, forms, key), Moved: moved, Plan: script}
	}
	if shadow {
		i := slices.IndexFunc(plan.Rules(), func(r *windows.Rule) bool { return r.Name == name })
		if i < 0 {
			return append(items, end)
		}
		return append(items, item(i, !plan.Rules()[i].Shadow))
	}
	for i, r := range plan.Rules() {
		if r.Shadow {
			items = append(items, item(i, true))
		}
	}
	if plan == nil || plan.Live == nil {
		return append(items, end)
	}
	return append(items, item(0, false))
}

// Throttled gives the keys that are over a limit now. A key may come twice if
// it changes meanwhile.
func (s *Redis) Throttled(ctx context.Context) iter.Seq2[api.Throttled, error] {
	return func(yield func(api.Throttled, error) bool) {
		for p := range s.keys.Partitions {
			for t, err := range s.ThrottledIn(ctx, p) {
				if !yield(t, err) || err != nil {
					return
				}
			}
		}
	}
}

// ThrottledIn is Throttled of one partition.
func (s *Redis) ThrottledIn(ctx context.Context, p int) iter.Seq2[api.Throttled, error] {
	return func(yield func(api.Throttled, error) bool) {
		for r, err := range s.levelRecords(ctx, p) {
			if err != nil {
				yield(api.Throttled{}, err)
				return
			}
			if t, ok := parseThrottle(r.field, r.text); ok && !yield(t, nil) {
				return
			}
		}
	}
}

// levelRecord is one field of a partition's hash of levels.
type levelRecord struct{ field, text string }

// levelRecords gives those of a partition. One may come twice if it changes meanwhile.
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
