package measure

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// eachMaster calls do for each master; the masters of a Cluster are called concurrently.
func eachMaster(ctx context.Context, c redis.UniversalClient,
	do func(ctx context.Context, node redis.UniversalClient) error) error {
	if cluster, ok := c.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return do(ctx, node) })
	}
	return do(ctx, c)
}

// Remove deletes every key that begins with prefix. The prefix must have no characters that SCAN reads as a pattern.
func Remove(ctx context.Context, c redis.UniversalClient, prefix string) error {
	return eachMaster(ctx, c, func(ctx context.Context, node redis.UniversalClient) error {
		for cursor := uint64(0); ; {
			names, next, err := node.Scan(ctx, cursor, prefix+"*", 1000).Result()
			if err != nil {
				return fmt.Errorf("looking for the keys %s*: %w", prefix, err)
			}
			pipe := node.Pipeline()
			for _, name := range names { // one by one: on a Cluster they are in different slots
				pipe.Unlink(ctx, name)
			}
			if _, err := pipe.Exec(ctx); err != nil {
				return fmt.Errorf("removing the keys %s*: %w", prefix, err)
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	})
}
