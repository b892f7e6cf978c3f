package streamtest

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestCluster(t *testing.T) { clusterFaults(t, Cluster(t)) }

// The same in containers, which Cluster takes where PATH has no redis-server.
func TestClusterInContainers(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err == nil {
		t.Setenv("PATH", "")
	}
	clusterFaults(t, Cluster(t))
}

// clusterFaults moves a slot, kills a master and revives it.
func clusterFaults(t *testing.T, c *RedisCluster) {
	ctx := t.Context()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	t.Cleanup(func() { _ = client.Close() })
	for i := range 25 {
		if err := client.Set(ctx, fmt.Sprintf("{a}%d", i), i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	slot := c.Slot("{a}")
	to := c.OtherMaster(slot)
	var steps []int
	c.Migrate(slot, to, func(moved int) { steps = append(steps, moved) })
	if got := fmt.Sprint(steps); got != "[0 10 20 25]" {
		t.Errorf("keys were moved in the steps %s", got)
	}
	c.AwaitWhole()
	if at := c.MasterOf(slot); at != to {
		t.Errorf("the slot is at %s, want %s", at, to)
	}
	for i := range 25 {
		if got, err := client.Get(ctx, fmt.Sprintf("{a}%d", i)).Int(); err != nil || got != i {
			t.Errorf("key %d is %d, %v", i, got, err)
		}
	}
	old := c.KillMasterOf(slot)
	at := c.AwaitNewMaster(slot, old)
	if at == old {
		t.Errorf("%s serves the slot, and was killed", at)
	}
	c.Revive()
	resume := c.CutReplicaOf(slot)
	resume()
	c.AwaitWhole()
}
