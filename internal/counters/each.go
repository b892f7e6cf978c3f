package counters

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/windows"
)

// EachKey calls visit for each key that has a meter of its plan, with the key's partition. It can call visit
// several times for one key. It scans all keys of each server, a thousand in a step. On a Cluster it scans all
// masters at the same time, so several goroutines may call visit. The first error ends the scan.
func (s *Redis) EachKey(ctx context.Context, rules *windows.Rules, visit func(p int, key string) error) error {
	walk := func(ctx context.Context, c redis.Cmdable) error {
		it := c.Scan(ctx, 0, s.keys.Prefix+":{*", 1000).Iterator()
		for it.Next(ctx) {
			_, rest, _ := strings.Cut(it.Val(), "}:")
			form, key, ok := strings.Cut(rest, ":")
			plan := rules.Match(key)
			if !ok || plan == nil || !slices.Contains(plan.Forms(), form) {
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
