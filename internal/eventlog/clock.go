package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/stream"
)

// Clocks returns, for each partition, the time of the clock of its server, in ms. That
// clock gives the partition's events and keys their times. On a Cluster the nodes'
// clocks differ. If a server does not answer, Clocks leaves out its partitions, and
// returns an error and also the other partitions.
func Clocks(ctx context.Context, c redis.UniversalClient, k *stream.Keys) (map[int]int64, error) {
	cluster, ok := c.(*redis.ClusterClient)
	if !ok {
		t, err := c.Time(ctx).Result()
		if err != nil {
			return nil, fmt.Errorf("reading the clock of Redis: %w", err)
		}
		out := make(map[int]int64, k.Partitions)
		for p := range k.Partitions {
			out[p] = t.UnixMilli()
		}
		return out, nil
	}
	byNode := map[*redis.Client][]int{} // master → its partitions
	for p := range k.Partitions {
		node, err := cluster.MasterForKey(ctx, k.Events(p))
		if err != nil {
			return nil, fmt.Errorf("finding the master of %s: %w", k.Events(p), err)
		}
		byNode[node] = append(byNode[node], p)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed error
	out := make(map[int]int64, k.Partitions)
	for node, parts := range byNode {
		all.Go(func() {
			t, err := node.Time(ctx).Result()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("reading the clock of %s: %w", node.Options().Addr, err))
				return
			}
			for _, p := range parts {
				out[p] = t.UnixMilli()
			}
		})
	}
	all.Wait()
	if failed != nil {
		cluster.ReloadState(ctx) // the node may no longer be a master
	}
	return out, failed
}
