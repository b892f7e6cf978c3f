package eventlog

import (
	"slices"

	"github.com/redis/go-redis/v9"
)

// Shards groups partitions for commands that read or write several partitions. On a
// single server there is one shard with all of them. On Redis Cluster, where a command
// may use only one slot, there is a shard for each partition.
func Shards(c redis.UniversalClient, parts []int) [][]int {
	if IsCluster(c) || len(parts) == 0 {
		return slices.Collect(slices.Chunk(parts, 1))
	}
	return [][]int{parts}
}

// IsCluster reports whether the client is that of a Cluster, where each partition is a shard.
func IsCluster(c redis.UniversalClient) bool {
	_, ok := c.(*redis.ClusterClient)
	return ok
}
