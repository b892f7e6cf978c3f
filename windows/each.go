package windows

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// EachKey calls visit for each key that has the first counter of its plan, with its partition; a
// key can come several times. It walks all keys of each server, a
// thousand in a step; on a Cluster the masters at once, so visit may be called by several
// goroutines. The first error ends it.
func (s *Redis) EachKey(ctx context.Context, rules *Rules, visit func(p int, key string) error) error {
	walk := func(ctx context.Context, c redis.Cmdable) error {
		it := c.Scan(ctx, 0, s.keys.Prefix+":{*", 1000).Iterator()
		for it.Next(ctx) {
			_, rest, _ := strings.Cut(it.Val(), "}:")
			form, key, ok := strings.Cut(rest, ":")
			plan := rules.Match(key)
			if !ok || plan == nil || !plan.counters[0].has(form) {
				continue
			}
			if err := visit(s.keys.Partition(key), key); err != nil {
				return err
			}
		}
		return it.Err()
	}
	var err error
	if cluster, ok := s.redis.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return walk(ctx, c) })
	} else {
		err = walk(ctx, s.redis)
	}
	if err != nil {
		return fmt.Errorf("walking the counters of %s: %w", s.keys.Prefix, err)
	}
	return nil
}

// Changed gives what tells of a key whether other rules are evaluated for it than were
// under `before`, or the same with other content. It is nil where all rules are the same.
func (r *Rules) Changed(before *Rules) func(key string) bool {
	if reflect.DeepEqual(r.list, before.list) {
		return nil
	}
	var same sync.Map // [2]*Plan → bool
	return func(key string) bool {
		pair := [2]*Plan{before.Match(key), r.Match(key)}
		v, ok := same.Load(pair)
		if !ok {
			v, _ = same.LoadOrStore(pair, reflect.DeepEqual(pair[0].Rules(), pair[1].Rules()))
		}
		return !v.(bool)
	}
}
