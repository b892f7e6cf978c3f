package eventlog

import (
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/stream"
)

// Shards divides the partitions among commands that read several at once: one
// shard with all of them on a single server; on Redis Cluster, where a command
// may touch one slot only, a shard for each.
func Shards(c redis.UniversalClient, k *stream.Keys) [][]int {
	if _, cluster := c.(*redis.ClusterClient); !cluster {
		return [][]int{k.All()}
	}
	shards := make([][]int, k.Partitions)
	for p := range shards {
		shards[p] = []int{p}
	}
	return shards
}
