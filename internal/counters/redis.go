package counters

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

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
	lua   *lua.Caller
	keys  *stream.Keys

	// Now replaces Redis's clock in tests; nil means Redis's clock.
	Now func() int64
	// Retention is how long events are kept; default stream.DefaultRetention.
	Retention time.Duration

	changed atomic.Int64                  // in ms: the latest time at which the rules may have changed
	ahead   atomic.Int64                  // in ms: how far Redis's clock was found to be ahead of this machine's
	rules   atomic.Pointer[recordedRules] // nil until RecordRules

	unlisted func(name string) // is called with the name of a hash of levels that has the wrong type; nil: no report
}

// New returns a counter that uses the keys of k. Until RecordRules it treats the rules as just changed.
func New(c redis.UniversalClient, k *stream.Keys) *Redis {
	s := &Redis{redis: c, lua: lua.NewCaller(c), keys: k}
	s.changed.Store(time.Now().UnixMilli())
	return s
}

// RequireNoRetry returns an error if the client could charge a check twice; see
// redisclient.RequireNoRetry. Call it before checks; folds do not need it.
func (s *Redis) RequireNoRetry() error { return redisclient.RequireNoRetry(s.redis) }

// Caller returns the client of the library in Redis.
func (s *Redis) Caller() *lua.Caller { return s.lua }

// Keys returns the names of the keys in Redis.
func (s *Redis) Keys() *stream.Keys { return s.keys }

// Clock returns the time of Now for the library; 0 means that the library reads Redis's clock.
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

// Key is a key, with its plan and its meters' keys in Redis, in the order of the plan.
type Key struct {
	Partition int
	Meters    []string
	Plan      *lua.Plan
}

// Key returns a key with its meters and its plan, as of now.
func (s *Redis) Key(plan *windows.Plan, key string) Key {
	p := s.keys.Partition(key)
	return Key{Partition: p, Meters: s.meters(p, plan.Forms(), key), Plan: s.luaPlan(plan)}
}

// appendLevels adds the keys of partition p in which operations write levels.
func (s *Redis) appendLevels(keys []string, p int) []string {
	return append(keys, s.keys.Levels(p), s.keys.Due(p), s.keys.Outbox(p))
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

// Peek implements Counter.
func (s *Redis) Peek(ctx context.Context, plan *windows.Plan, key string) (windows.KeyState, error) {
	s.noticePlan(plan)
	var got []lua.KeyState
	err := s.retryInPeriod(func() (err error) {
		got, err = s.peek(ctx, []Key{s.Key(plan, key)})
		return err
	})
	if err != nil {
		return windows.KeyState{}, err
	}
	return plan.State(got[0]), nil
}

// peek runs peek.lua: it returns the states of keys.
func (s *Redis) peek(ctx context.Context, list []Key) ([]lua.KeyState, error) {
	keys, args := make([]string, 0, 2*len(list)), append(make([]any, 0, 2+len(list)), s.Clock().Arg())
	plans := make([]*lua.Plan, len(list))
	for i, k := range list {
		keys = append(append(keys, s.keys.Levels(k.Partition)), k.Meters...)
		plans[i] = k.Plan
	}
	r := s.lua.Call(ctx, "peek", plans, keys, lua.AppendTexts(args, plans)...)
	out := make([]lua.KeyState, len(list))
	for i, plan := range plans {
		out[i] = r.State(plan)
	}
	return out, r.End()
}

// Reset implements Counter. It resets the key under every algorithm. Otherwise the count
// of an earlier algorithm of the rule would count again if the rule went back to it.
func (s *Redis) Reset(ctx context.Context, plan *windows.Plan, key string) (had bool, err error) {
	err = s.retryInPeriod(func() error {
		own := s.Key(plan, key)
		keys := append(s.appendLevels(nil, own.Partition), s.keys.Holds(own.Partition, key))
		keys = slices.Concat(keys, own.Meters, s.othersOf(key, own.Meters))
		args := []any{s.Clock().Arg(), own.Plan.Text()}
		for _, r := range plan.Shadows {
			args = append(args, r.Name)
		}
		r := s.lua.Call(ctx, "reset", []*lua.Plan{own.Plan}, keys, args...)
		had = r.Integer() > 0
		r.Integer() // how many transitions were written
		return r.End()
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
