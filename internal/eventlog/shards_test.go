package eventlog_test

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/streamtest"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

func TestShards(t *testing.T) {
	k := streamtest.Keys(t, 3)
	one := streamtest.Connect(t, "127.0.0.1:1")
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() { _ = cluster.Close() })
	for _, c := range []struct {
		client redis.UniversalClient
		want   [][]int
	}{{one, [][]int{{0, 1, 2}}}, {cluster, [][]int{{0}, {1}, {2}}}} {
		if got := eventlog.Shards(c.client, k.All()); !slices.EqualFunc(got, c.want, slices.Equal) {
			t.Errorf("%T: shards %v, want %v", c.client, got, c.want)
		}
	}
}
