package httpapi_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

const nobody = "127.0.0.1:1"

// halfACluster is a client of a Cluster of two masters, of which one is not there:
// the slots below 8192 are at addr, the others at an address that nobody has.
func halfACluster(t *testing.T, addr string) *redis.ClusterClient {
	t.Helper()
	c := stream.NewCluster(&redis.ClusterOptions{
		Addrs: []string{addr}, ContextTimeoutEnabled: true, DialerRetries: 1,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{
				{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: addr}}},
				{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: nobody}}},
			}, nil
		},
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// keyAt returns a key whose partition is at addr, or at the address that nobody has.
func keyAt(t *testing.T, w *world, c *redis.ClusterClient, addr string) string {
	t.Helper()
	for i := range 1000 {
		key := fmt.Sprintf("allow:%d", i)
		node, err := c.MasterForKey(t.Context(), w.keys.Events(w.keys.Partition(key)))
		testkit.Must(t, err)
		if strings.HasSuffix(addr, node.Options().Addr) { // the client leaves out a loopback host
			return key
		}
	}
	t.Fatal("no such key")
	return ""
}

// Failures of a dead shard count for that shard alone: checks with a key of the dead shard and a key of a healthy one
// do not stop the answers of the healthy one.
func TestADeadShardTakesNoAnswersFromTheOthers(t *testing.T) {
	addr := streamtest.EmbeddedRedis(t).Addr()
	c := halfACluster(t, addr)
	w := newWorld(t, c, rule("allow", func(r *windows.Rule) { r.OnError = windows.OnErrorAllow },
		windows.Window{Limit: 1000, Per: time.Minute}))
	dead, healthy := keyAt(t, w, c, nobody), keyAt(t, w, c, addr)
	for i := range 20 {
		both := w.post(t, fmt.Sprintf(`{"checks":[{"key":%q},{"key":%q}]}`, dead, healthy))
		if source := nth(t, both, 0)["source"]; both.status != 200 || source != "policy" {
			t.Fatalf("both, %d: %s", i, both.text)
		}
	}
	if alone := w.get(t, healthy); alone.str("source") != "redis" {
		t.Errorf("after checks that named a dead shard too, the healthy one is answered by policy: %s", alone.text)
	}
	if used := w.used(t, healthy); used != 1 {
		t.Errorf("%d of the healthy key used, want 1: what was decided by policy charges nothing", used)
	}
}
