package counters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/overrides"
	"github.com/streamcounter/streamcounter/windows"
)

// EachKey calls visit for each key that has a meter of its plan, with its partition; a
// key can come several times. It walks all keys of each server, a
// thousand in a step; on a Cluster the masters at once, so visit may be called by several
// goroutines. The first error ends it.
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

// How long Covered looks at keys, and how many it counts.
const (
	coveredFor = 2 * time.Second
	coveredMax = 1_000_000
)

// Covered counts the keys that the pattern or the network of an override has now. It walks all keys, for a while: of
// very many it says that there are more.
func (s *Redis) Covered(ctx context.Context, rules *windows.Rules, one api.Override) (api.Covered, error) {
	within, cancel := context.WithTimeout(ctx, coveredFor)
	defer cancel()
	out, err := s.covered(within, rules, overrides.Matcher(overrides.Target("", one.Several())))
	if errors.Is(err, errEnoughKeys) || err != nil && within.Err() != nil && ctx.Err() == nil {
		out.AtLeast, err = true, nil
	}
	return out, err
}

var errEnoughKeys = errors.New("enough keys are counted")

func (s *Redis) covered(ctx context.Context, rules *windows.Rules, fits func(key string) bool) (out api.Covered,
	err error) {
	throttled := map[string]struct{}{} // one key can have several decisions
	for t, err := range s.Throttled(ctx) {
		if err != nil {
			return out, err
		}
		if fits(t.Key) && !t.Shadow {
			throttled[t.Key] = struct{}{}
			out.Throttled = int64(len(throttled))
		}
	}
	var mu sync.Mutex // masters of a Cluster are walked at once
	seen := map[string]struct{}{}
	err = s.EachKey(ctx, rules, func(_ int, key string) error {
		if !fits(key) {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		seen[key] = struct{}{}
		if out.Keys = int64(len(seen)); out.Keys >= coveredMax {
			return errEnoughKeys
		}
		return nil
	})
	return out, err
}
