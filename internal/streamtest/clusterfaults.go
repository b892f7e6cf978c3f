package streamtest

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Migrate moves a slot to the master at `to` while it is in use, as redis-cli does: a few keys at a time. If step is
// not nil, it runs before the first keys and after each few keys, while the nodes redirect clients from one to the
// other.
func (c *RedisCluster) Migrate(slot int, to string, step func(moved int)) {
	c.t.Helper()
	ctx := context.Background()
	src, dst := c.at(c.MasterOf(slot)), c.at(to)
	if step == nil {
		step = func(int) {}
	}
	c.BeginMigration(slot, to)
	step(0)
	for moved := 0; ; {
		keys, err := src.redis.ClusterGetKeysInSlot(ctx, slot, 10).Result()
		testkit.Must(c.t, err)
		if len(keys) == 0 {
			break
		}
		args := []any{"MIGRATE", "127.0.0.1", dst.port, "", 0, 5000, "KEYS"}
		for _, k := range keys {
			args = append(args, k)
		}
		testkit.Must(c.t, src.redis.Do(ctx, args...).Err())
		moved += len(keys)
		step(moved)
	}
	// Assign the new owner first: the slot must always have an owner.
	for _, n := range append([]*clusterNode{dst, src}, c.up()...) {
		err := n.redis.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", dst.id).Err()
		if err != nil && !strings.Contains(err.Error(), "SETSLOT only with masters") {
			c.t.Fatal(err)
		}
	}
}

// BeginMigration marks a slot as moving to the master at `to`, and moves no key. The returned function ends that.
func (c *RedisCluster) BeginMigration(slot int, to string) (end func()) {
	c.t.Helper()
	src, dst := c.at(c.MasterOf(slot)), c.at(to)
	set := func(n *clusterNode, state ...any) {
		c.t.Helper()
		args := append([]any{"CLUSTER", "SETSLOT", slot}, state...)
		testkit.Must(c.t, n.redis.Do(context.Background(), args...).Err())
	}
	set(dst, "IMPORTING", src.id)
	set(src, "MIGRATING", dst.id)
	return func() { set(src, "STABLE"); set(dst, "STABLE") }
}

// AddMaster adds a master without slots, and returns its address. Its library of functions is empty.
func (c *RedisCluster) AddMaster() string {
	c.t.Helper()
	ctx, n := context.Background(), newNode(c.t, "master - 0 0 0 connected")
	n.run(c.t, []*clusterNode{n}, nil)
	for _, other := range c.up() { // gossip alone would take seconds
		testkit.Must(c.t, n.redis.Do(ctx, "CLUSTER", "MEET", "127.0.0.1", other.port, other.bus).Err())
	}
	Eventually(c.t, "the new master is known", func() (bool, string) {
		for _, other := range c.up() {
			list, err := other.redis.ClusterNodes(ctx).Result()
			if err != nil || !strings.Contains(list, n.id) {
				return false, fmt.Sprint(list, err)
			}
		}
		info := n.redis.ClusterInfo(ctx).Val()
		return strings.Contains(info, "cluster_state:ok"), info
	})
	c.nodes = append(c.nodes, n)
	return n.Addr()
}

// KillMasterOf kills the master of a slot by SIGKILL and returns its address.
func (c *RedisCluster) KillMasterOf(slot int) string {
	c.t.Helper()
	n := c.at(c.MasterOf(slot))
	n.Kill()
	return n.Addr()
}

// AwaitNewMaster waits until another node than `old` serves a slot, and returns its address.
func (c *RedisCluster) AwaitNewMaster(slot int, old string) string {
	c.t.Helper()
	at := old
	Eventually(c.t, fmt.Sprintf("another master than %s serves slot %d", old, slot),
		func() (bool, string) {
			at = c.MasterOf(slot)
			return at != old && at != "", at
		})
	return at
}

// CutReplicaOf freezes the replica of a slot's master and cuts the link between them. So everything that the master
// accepts from now on is lost if the master dies. The returned function lets the replica go on.
func (c *RedisCluster) CutReplicaOf(slot int) (resume func()) {
	c.t.Helper()
	master := c.at(c.MasterOf(slot))
	list, err := master.slotMap()
	testkit.Must(c.t, err)
	for _, s := range list {
		if s.Start <= slot && slot <= s.End && len(s.Nodes) > 1 {
			n := c.at(s.Nodes[1].Addr)
			n.Pause()
			// Data that was sent before would still reach the replica, from its socket.
			testkit.Must(c.t, master.redis.Do(context.Background(), "CLIENT", "KILL", "TYPE", "replica").Err())
			return sync.OnceFunc(n.Resume)
		}
	}
	c.t.Fatalf("the master of slot %d has no replica", slot)
	return nil
}

// Revive starts the killed nodes again, as replicas of those that took over.
func (c *RedisCluster) Revive() {
	c.t.Helper()
	for _, n := range c.nodes {
		if !n.running() {
			n.Start()
		}
	}
	c.AwaitWhole()
}
