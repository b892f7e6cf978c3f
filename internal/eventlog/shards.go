package eventlog

import (
	"slices"

	"github.com/redis/go-redis/v9"
)

// Shards divides partitions among commands that read or write several at once: one
// shard with all of them on a single server; on Redis Cluster, where a command
// may touch one slot only, a shard for each.
func Shards(c redis.UniversalClient, parts []int) [][]int {
	if IsCluster(c) || len(parts) == 0 {
		return slices.Collect(slices.Chunk(parts, 1))
	}
	return [][]int{parts}
}

// IsCluster reports whether each partition is a shard of its own.
func IsCluster(c redis.UniversalClient) bool {
	_, ok := c.(*redis.ClusterClient)
	return ok
}
