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

// clusterOf reports whether this is a Cluster, how the partitions spread over its masters, and which slots move.
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
		return []Finding{notChecked(check, err, "ACL SETUSER <user> +cluster|info")}
	}
	if !strings.Contains(text, "cluster_state:ok") {
		return []Finding{found(check, "the Cluster is down").as(Problem,
			"slots without a master refuse events and checks", "redis-cli --cluster check HOST:PORT")}
	}
	var nodes string // each master's own line has its open slots, as [slot->-node] and [slot-<-node]
	var all []Finding
	for _, s := range servers {
		text, err := s.client.ClusterNodes(ctx).Result()
		if nodes += text; err != nil && !noAnswer(err) {
			all = []Finding{notChecked(check, err, "ACL SETUSER <user> +cluster|nodes")}
		}
	}
	var moving []string
	count := map[string]int{}
	for p := range k.Partitions {
		master, err := cluster.MasterForKey(ctx, k.Events(p))
		if err != nil {
			return []Finding{notChecked(check, fmt.Errorf("the master of partition %d: %w", p, err),
				"ACL SETUSER <user> +cluster|slots")}
		}
		count[master.Options().Addr]++
		if slot := slotOf(p); strings.Contains(nodes, fmt.Sprintf("[%d-", slot)) {
			moving = append(moving, fmt.Sprintf("%d (partition %d)", slot, p))
		}
	}
	if len(moving) > 0 {
		all = append(all, found(check, "slots that are moving: "+strings.Join(moving, ", ")).as(Warning,
			"until a slot has moved, calls with new keys of it fail (TRYAGAIN): events wait, on_error decides checks",
			"finish the reshard; if none runs: redis-cli --cluster fix HOST:PORT"))
	}
	return append(all, spread(count, servers, k.Partitions))
}

// slotOf returns the slot of a partition's keys: CRC-16/XMODEM of their hash tag, which is the partition's number.
func slotOf(p int) int {
	var crc uint16
	for _, c := range strconv.Itoa(p) {
		crc ^= uint16(c) << 8
		for range 8 {
			crc = crc<<1 ^ crc>>15*0x1021
		}
	}
	return int(crc % 16384)
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
