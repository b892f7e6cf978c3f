package eventlog_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// connect answers a client like those of the commands: it never sends twice.
func connect(t testing.TB, addr string, change ...func(*redis.Options)) *redis.Client {
	t.Helper()
	o := &redis.Options{
		Addr: strings.TrimPrefix(addr, "redis://"), MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true,
		ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, f := range change {
		f(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// onEveryRedis runs a test on the embedded and on a real one.
func onEveryRedis(t *testing.T, test func(t *testing.T, c *redis.Client)) {
	t.Run("embedded", func(t *testing.T) { test(t, connect(t, streamtest.EmbeddedRedis(t).Addr())) })
	t.Run("real", func(t *testing.T) { test(t, connect(t, streamtest.Redis(t))) })
}

func newKeys(t testing.TB, partitions int) *stream.Keys {
	t.Helper()
	k, err := stream.NewKeys(streamtest.Prefix(t), partitions)
	testkit.Must(t, err)
	return k
}

func newLog(t testing.TB, c *redis.Client, k *stream.Keys, retention time.Duration) *stream.Log {
	t.Helper()
	l, err := stream.NewLog(c, k, retention)
	testkit.Must(t, err)
	return l
}

// events makes n of them, with a key each.
func events(n int) []api.Event {
	list := make([]api.Event, n)
	for i := range list {
		list[i] = api.Event{Key: fmt.Sprintf("user:%d", i), Count: int64(i + 1)}
	}
	return list
}
