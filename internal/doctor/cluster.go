package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/stream"
)

// clusterOf reports whether this is a Cluster, and how the partitions spread over its masters.
func clusterOf(ctx context.Context, c redis.UniversalClient, servers []*server, k *stream.Keys) []Finding {
	const check = "redis.cluster"
	cluster, ok := c.(*redis.ClusterClient)
	if !ok {
		if servers[0].info["cluster_enabled"] == "" {
			return nil
		}
		return []Finding{found(check, "no Cluster")}
	}
	text, err := answering(servers).ClusterInfo(ctx).Result()
	if err != nil {
		return []Finding{unseen(check, err, "ACL SETUSER <user> +cluster|info")}
	}
	if !strings.Contains(text, "cluster_state:ok") {
		return []Finding{found(check, "the Cluster is down").as(Problem,
			"slots without a master refuse events and checks", "redis-cli --cluster check HOST:PORT")}
	}
	count := map[string]int{}
	for p := range k.Partitions {
		master, err := cluster.MasterForKey(ctx, k.Events(p))
		if err != nil {
			return []Finding{unseen(check, fmt.Errorf("the master of partition %d: %w", p, err),
				"ACL SETUSER <user> +cluster|slots")}
		}
		count[master.Options().Addr]++
	}
	return []Finding{spread(count, servers, k.Partitions)}
}

func spread(count map[string]int, servers []*server, partitions int) Finding {
	var each []int
	for _, s := range servers {
		each = append(each, count[s.addr])
	}
	slices.Sort(each)
	var words []string
	for _, n := range each {
		words = append(words, strconv.Itoa(n))
	}
	f := found("redis.cluster", fmt.Sprintf("%s over %s: %s", english.Plural(partitions, "partition"),
		english.Plural(len(each), "master"), strings.Join(words, ", ")))
	if least, most := each[0], each[len(each)-1]; most > 2*least+1 {
		f = f.as(Note, "the masters with the most partitions do most of the work",
			"move slots (redis-cli --cluster reshard), or more partitions under a new prefix")
	}
	return f
}
