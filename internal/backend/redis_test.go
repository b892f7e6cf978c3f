package backend_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A Redis that answers and refuses is not reported as one that does not answer.
func TestARedisThatRefuses(t *testing.T) {
	server := streamtest.EmbeddedRedis(t)
	for _, refusal := range []string{"MISCONF Errors writing to the AOF file: No space left on device",
		"WRONGPASS invalid username-password pair", "LOADING Redis is loading the dataset in memory"} {
		server.SetError(refusal)
		_, err := backend.ConnectRedis(t.Context(), settings.Redis{URL: "redis://" + server.Addr()}, 0)
		if want := "the Redis at redis://" + server.Addr() + " answers, but refuses: " + refusal; err == nil ||
			!strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A Cluster that begins with one master, named by its only address, is used as a Cluster.
func TestOneAddressOfACluster(t *testing.T) {
	ctx := t.Context()
	node := streamtest.OwnClusterOfOne(t)
	alone := "redis://" + streamtest.EmbeddedRedis(t).Addr()
	for url, isCluster := range map[string]bool{node.URL(): true, alone: false} {
		short, blocking, err := backend.ConnectRedisToRead(ctx, settings.Redis{URL: url}, 4)
		testkit.Must(t, err)
		for _, c := range []redis.UniversalClient{short, blocking} {
			if _, ok := c.(*redis.ClusterClient); ok != isCluster {
				t.Errorf("%s: %T", url, c)
			}
			testkit.Must(t, c.Set(ctx, streamtest.Prefix(t), 1, time.Minute).Err())
			testkit.Must(t, c.Close())
		}
	}
}
