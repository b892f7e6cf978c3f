package eventlog_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

func TestBacklogs(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx, k := t.Context(), newKeys(t, 4)
		expect := func(what string, p int, oldest time.Duration, pending int64) {
			t.Helper()
			list, err := eventlog.Backlogs(ctx, c, k)
			testkit.Must(t, err)
			if b := list[p]; b.Oldest < oldest || b.Oldest > oldest+time.Minute || b.Pending != pending {
				t.Errorf("%s: %+v, want about %v and %d pending", what, b, oldest, pending)
			}
		}
		put := func(p int, age time.Duration) {
			ms := c.Time(ctx).Val().Add(-age).UnixMilli()
			testkit.Must(t, c.XAdd(ctx, &redis.XAddArgs{Stream: k.Events(p), ID: fmt.Sprintf("%d-*", ms),
				Values: []any{"key", "k"}}).Err())
		}
		expect("no stream", 1, 0, 0)
		put(1, 3*time.Hour)
		put(1, 2*time.Hour)
		expect("no worker ever", 1, 3*time.Hour, 0)
		r := newReader(t, c, k, "a")
		testkit.Must(t, r.CreateGroups(ctx))
		expect("a group, nothing read", 1, 3*time.Hour, 0)
		read(t, r, -1)
		expect("all read", 1, 0, 2)
		put(1, time.Hour)
		expect("one more", 1, time.Hour, 2)
		expect("another partition", 2, 0, 0)

		// An unread event that is too large to be read is an unread event.
		testkit.Must(t, c.XAdd(ctx, &redis.XAddArgs{Stream: k.Events(3), Values: []any{"key",
			strings.Repeat("k", 200_000)}}).Err())
		// Workers have read an event with the greatest ID.
		greatest := "18446744073709551615-18446744073709551615"
		testkit.Must(t, c.XAdd(ctx, &redis.XAddArgs{Stream: k.Events(2), ID: greatest,
			Values: []any{"key", "k"}}).Err())
		_, err := eventlog.NewReader(c, k, "a", []int{2}).Read(ctx, 1, noBlock)
		testkit.Must(t, err)
		list, err := eventlog.Backlogs(ctx, streamtest.Connect(t, c.Options().Addr, streamtest.Tight), k)
		testkit.Must(t, err)
		if b, ok := list[2]; !ok || b.Unread || b.NowMs == 0 || b.Pending != 1 || !list[3].Unread || !list[1].Unread {
			t.Errorf("%+v", list)
		}
	})
}

func TestMain(m *testing.M) { streamtest.Main(m) }

func newKeys(t testing.TB, partitions int) *stream.Keys {
	t.Helper()
	k, err := stream.NewKeys(streamtest.Prefix(t), partitions)
	testkit.Must(t, err)
	return k
}

func TestShards(t *testing.T) {
	k := newKeys(t, 3)
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
