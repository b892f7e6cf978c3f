package streamtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// slots is how many hash slots a Redis Cluster has, and masters how many masters ours has at its start.
const slots, masters = 16384, 3

// clusterSettings are the settings of each node in addition to redisSettings. Replicas copy at once, and may become
// master however long they were cut off. The cluster lists them within a second, after the first ping has given them
// an offset. A test waits for all of that.
var clusterSettings = []string{
	"--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--cluster-replica-validity-factor", "0",
	"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1", "--protected-mode", "no",
}

// RedisCluster is a real Redis Cluster of one test: three masters with a replica each. A failure in a method ends the
// test, so call the methods only from the test's own goroutine.
type RedisCluster struct {
	t     testing.TB
	nodes []*clusterNode // three masters, then the replica of each, as they were at the start
}

type clusterNode struct {
	*Server
	bus   int    // port on which the nodes talk
	id    string // of 40 hexadecimal digits
	begin string // what it is at its start, in the words of a node's configuration
	redis *redis.Client
}

// slotMap returns which node serves which slots, as this node reports it to clients.
func (n *clusterNode) slotMap() ([]redis.ClusterSlot, error) {
	//lint:ignore SA1019 deprecated, but what the clients ask for, on every version
	return n.redis.ClusterSlots(context.Background()).Result()
}

// Cluster starts a Redis Cluster for this test alone, with the same server programs as OwnRedis, and returns when all
// nodes agree on it. It ends with the test.
func Cluster(t testing.TB, args ...string) *RedisCluster {
	t.Helper()
	c := &RedisCluster{t: t}
	for i := range masters {
		c.nodes = append(c.nodes, newNode(t, "master - 0 0 %d connected %d-%d", i+1, i*slots/masters,
			(i+1)*slots/masters-1))
	}
	for i, master := range c.nodes {
		c.nodes = append(c.nodes, newNode(t, "slave %s 0 0 %d connected", master.id, i+1))
	}
	for _, n := range c.nodes {
		n.run(t, c.nodes, args)
	}
	c.AwaitWhole()
	return c
}

func newNode(t testing.TB, begin string, args ...any) *clusterNode {
	return &clusterNode{bus: testkit.FreePort(t), id: fmt.Sprintf("%016x%024x", rand.Uint64(), rand.Uint64()),
		begin: fmt.Sprintf(begin, args...)}
}

// run starts the node with a configuration that has the nodes that it knows: gossip alone would take seconds. Nodes
// tell each other on which ports they serve clients.
func (n *clusterNode) run(t testing.TB, known []*clusterNode, args []string) {
	t.Helper()
	config := ""
	for _, other := range known {
		own := ""
		if other == n {
			own = "myself,"
		}
		config += fmt.Sprintf("%s 127.0.0.1:1@%d %s%s\n", other.id, other.bus, own, other.begin)
	}
	config += fmt.Sprintf("vars currentEpoch %d lastVoteEpoch 0\n", masters)
	n.Server = OwnRedis(t, slices.Concat(clusterSettings, []string{"--cluster-port", strconv.Itoa(n.bus),
		"--cluster-config-file", testkit.WriteFile(t, "nodes.conf", config)}, args)...)
	n.redis = redis.NewClient(&redis.Options{Addr: n.Addr(), MaxRetries: -1, DialerRetries: 1,
		ReadTimeout: 10 * time.Second})
	t.Cleanup(func() { _ = n.redis.Close() })
}

// AwaitWhole waits until all running nodes agree on the masters, all slots are served, and each running replica
// follows its master.
func (c *RedisCluster) AwaitWhole() {
	c.t.Helper()
	ctx := context.Background()
	Eventually(c.t, "the cluster is whole", func() (bool, string) {
		views, replicas, up := map[string]bool{}, 0, c.up()
		for _, n := range up {
			info, err := n.redis.ClusterInfo(ctx).Result()
			if err != nil || !strings.Contains(info, "cluster_state:ok") ||
				!strings.Contains(info, "cluster_slots_ok:16384") {
				return false, fmt.Sprintf("%s: %v %s", n.Addr(), err, info)
			}
			list, err := n.slotMap()
			if err != nil {
				return false, err.Error()
			}
			view, following := "", map[string]bool{}
			for _, s := range list {
				view += fmt.Sprintf("%d-%d %s\n", s.Start, s.End, s.Nodes[0].Addr)
				for _, r := range s.Nodes[1:] {
					following[r.Addr] = true
				}
			}
			views[fmt.Sprintf("%s %d replicas", view, len(following))] = true
			if len(following)+masters != len(up) {
				return false, fmt.Sprint(n.Addr(), " knows these replicas: ", following)
			}
			state, err := n.redis.Info(ctx, "replication").Result()
			if err != nil {
				return false, err.Error()
			}
			if strings.Contains(state, "role:slave") {
				replicas++
				if !strings.Contains(state, "master_link_status:up") {
					return false, state
				}
			}
		}
		return len(views) == 1 && replicas+masters == len(up), fmt.Sprintf("%d replicas, views: %v", replicas, views)
	})
}

// up returns the nodes that are not killed.
func (c *RedisCluster) up() []*clusterNode {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(n *clusterNode) bool { return !n.running() })
}

// URL returns the URL of the cluster for --redis: three of its nodes.
func (c *RedisCluster) URL() string {
	return fmt.Sprintf("%s,%s,%s", c.nodes[0].URL(), c.nodes[1].URL(), c.nodes[2].URL())
}

// Addrs returns the addresses of all nodes, those that began as masters first.
func (c *RedisCluster) Addrs() []string {
	list := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		list[i] = n.Addr()
	}
	return list
}

// Slot returns the hash slot of a key.
func (c *RedisCluster) Slot(key string) int {
	c.t.Helper()
	slot, err := c.nodes[0].redis.ClusterKeySlot(context.Background(), key).Result()
	testkit.Must(c.t, err)
	return int(slot)
}

// MasterOf returns the address of the master that serves a slot, according to most of the running nodes.
func (c *RedisCluster) MasterOf(slot int) string {
	c.t.Helper()
	votes, best := map[string]int{}, ""
	for _, n := range c.up() {
		if n.paused {
			continue
		}
		list, err := n.slotMap()
		testkit.Must(c.t, err)
		for _, s := range list {
			if s.Start <= slot && slot <= s.End {
				if votes[s.Nodes[0].Addr]++; votes[s.Nodes[0].Addr] > votes[best] {
					best = s.Nodes[0].Addr
				}
			}
		}
	}
	return best
}

// OtherMaster returns the address of a master that does not serve a slot.
func (c *RedisCluster) OtherMaster(slot int) string {
	c.t.Helper()
	owner := c.MasterOf(slot)
	for s := 0; s < slots; s += slots / 6 {
		if at := c.MasterOf(s); at != owner {
			return at
		}
	}
	c.t.Fatalf("%s serves all slots", owner)
	return ""
}

func (c *RedisCluster) at(addr string) *clusterNode {
	c.t.Helper()
	for _, n := range c.nodes {
		if n.Addr() == addr {
			return n
		}
	}
	c.t.Fatalf("no node has the address %q", addr)
	return nil
}

// Each calls do for every running node, with its address and its own client.
func (c *RedisCluster) Each(do func(addr string, node *redis.Client)) {
	for _, n := range c.up() {
		do(n.Addr(), n.redis)
	}
}

// OwnClusterOfOne starts a Cluster that has one master.
func OwnClusterOfOne(t testing.TB) *Server {
	t.Helper()
	n := newNode(t, "master - 0 0 1 connected 0-%d", slots-1)
	n.run(t, []*clusterNode{n}, nil)
	Eventually(t, "the Cluster is whole", func() (bool, string) {
		info := n.redis.ClusterInfo(t.Context()).Val()
		return strings.Contains(info, "cluster_state:ok"), info
	})
	return n.Server
}
