package httpapi_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// One Cluster serves all of these tests; each has its own keys. cluster/story.txt has calls over several partitions.
func TestOnACluster(t *testing.T) {
	t.Parallel()
	c := streamtest.Cluster(t)
	client := stream.NewCluster(&redis.ClusterOptions{Addrs: c.Addrs()[:3], ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	testkit.StoriesIn(t, "testdata/cluster", func(t *testing.T, path, rules string, steps []string) []string {
		return tell(t, client, path, rules, steps)
	})
	t.Run("a partition that moves", func(t *testing.T) { aMovingPartition(t, c, client) })
}

// While the slot of one partition moves, checks of its keys follow on_error, at once when the breaker has seen enough
// of them. Checks of other partitions are answered.
func aMovingPartition(t *testing.T, c *streamtest.RedisCluster, client *redis.ClusterClient) {
	w := newWorld(t, client, rule("user", nil, windows.Window{Limit: 1000, Per: time.Hour}))
	check := func(keys ...string) (api.Source, time.Duration) {
		t.Helper()
		began := time.Now()
		all, err := w.service.CheckAll(t.Context(), asksOf(keys...))
		testkit.Must(t, err)
		return all.Checks[0].Source, time.Since(began)
	}
	moving, still := "user:1", "user:2"
	if w.keys.Partition(moving) == w.keys.Partition(still) {
		t.Fatal("the keys share a partition")
	}
	answered := func(when string) {
		t.Helper()
		streamtest.Eventually(t, "Redis answers for both keys "+when, func() (bool, string) {
			a, _ := check(moving)
			b, _ := check(still)
			return a == api.SourceRedis && b == api.SourceRedis, fmt.Sprint(a, b)
		})
	}
	answered("at first")
	slot := c.Slot(w.keys.Levels(w.keys.Partition(moving)))
	moved := false
	c.Migrate(slot, c.OtherMaster(slot), func(n int) {
		if n > 0 {
			return
		}
		moved = true
		for range 5 { // of two keys: one alone is found on either server
			if source, _ := check(moving, "user:beside{"+moving+"}"); source != api.SourcePolicy {
				t.Errorf("a check of a slot that moves was answered by %q", source)
			}
		}
		source, took := check(moving, still)
		if source != api.SourcePolicy || took > timeout/2 {
			t.Errorf("a check that needs the moving slot was answered by %q after %v, want on_error at once", source,
				took)
		}
		if source, _ := check(still); source != api.SourceRedis {
			t.Errorf("a check of another slot was answered by %q", source)
		}
	})
	if !moved {
		t.Error("nothing was tested")
	}
	answered("after the move")
}

func asksOf(keys ...string) (asks []api.CheckRequest) {
	for _, k := range keys {
		asks = append(asks, api.CheckRequest{Key: k})
	}
	return asks
}
