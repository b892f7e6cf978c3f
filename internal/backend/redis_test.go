package backend_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A Cluster that begins with one master, named by its only address, is used as a Cluster.
func TestOneAddressOfACluster(t *testing.T) {
	ctx := t.Context()
	node := streamtest.OwnRedis(t, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(testkit.FreePort(t)))
	one := streamtest.Connect(t, node.URL())
	testkit.Must(t, one.ClusterAddSlotsRange(ctx, 0, 16383).Err())
	streamtest.Eventually(t, 10*time.Second, "the Cluster is whole", func() (bool, string) {
		info := one.ClusterInfo(ctx).Val()
		return strings.Contains(info, "cluster_state:ok"), info
	})
	short, blocking, err := backend.ConnectRedis(ctx, node.URL(), settings.ClientFiles{}, 4)
	testkit.Must(t, err)
	for _, c := range []redis.UniversalClient{short, blocking} {
		if _, ok := c.(*redis.ClusterClient); !ok {
			t.Errorf("%T", c)
		}
		if err := c.MSet(ctx, "a", 1).Err(); err != nil {
			t.Error(err)
		}
		testkit.Must(t, c.Close())
	}
	short, blocking, err = backend.ConnectRedis(ctx, streamtest.OwnRedis(t).URL(), settings.ClientFiles{}, 4)
	testkit.Must(t, err)
	for _, c := range []redis.UniversalClient{short, blocking} {
		if _, ok := c.(*redis.Client); !ok {
			t.Errorf("a server of its own: %T", c)
		}
		testkit.Must(t, c.Close())
	}
}
