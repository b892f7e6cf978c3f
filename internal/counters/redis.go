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

	unlisted func(name string) // is called with levels that are of another type; nil: it is not reported
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

// Caller returns what calls the library in Redis.
func (s *Redis) Caller() *lua.Caller { return s.lua }

// Keys returns the names of the keys in Redis.
func (s *Redis) Keys() *stream.Keys { return s.keys }

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
