package eventlog_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

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
