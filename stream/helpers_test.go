package stream_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/entry"
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

func newLog(t testing.TB, c redis.UniversalClient, k *stream.Keys, retention time.Duration) *stream.Log {
	t.Helper()
	l, err := stream.NewLog(c, k, retention)
	testkit.Must(t, err)
	return l.Verified()
}

// stored returns the events of all partitions in Redis: key → the counts of its
// entries, in order.
func stored(t testing.TB, c redis.UniversalClient, k *stream.Keys) map[string][]int64 {
	t.Helper()
	got := map[string][]int64{}
	for _, p := range k.All() {
		entries, err := c.XRange(t.Context(), k.Events(p), "-", "+").Result()
		testkit.Must(t, err)
		for _, m := range entries {
			e, err := entry.Message{ID: m.ID, Values: m.Values}.Decode()
			if err != nil {
				t.Fatalf("entry %s of %s: %v", m.ID, k.Events(p), err)
			}
			if want := k.Partition(e.Key); p != want {
				t.Errorf("key %s stands in partition %d, want %d", e.Key, p, want)
			}
			got[e.Key] = append(got[e.Key], e.Count)
		}
	}
	return got
}

// events returns n events with different keys.
func events(n int) []api.Event {
	list := make([]api.Event, n)
	for i := range list {
		list[i] = api.Event{Key: fmt.Sprintf("user:%d", i), Count: int64(i + 1)}
	}
	return list
}

// warm opens the connection that the client's next pipeline uses: pipelines have
// separate connections.
func warm(t testing.TB, c *redis.Client) {
	t.Helper()
	pipe := c.Pipeline()
	pipe.Ping(t.Context())
	pipe.Ping(t.Context())
	_, err := pipe.Exec(t.Context())
	testkit.Must(t, err)
}
