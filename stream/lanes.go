package stream

import "github.com/redis/go-redis/v9"

// Lanes divides the partitions among commands that read several at once: one
// lane with all of them on a single server; on Redis Cluster, where a command
// may touch one slot only, a lane for each.
func Lanes(c redis.UniversalClient, k *Keys) [][]int {
	if _, cluster := c.(*redis.ClusterClient); !cluster {
		return [][]int{k.All()}
	}
	lanes := make([][]int, k.Partitions)
	for p := range lanes {
		lanes[p] = []int{p}
	}
	return lanes
}
