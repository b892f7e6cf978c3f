package eventlog_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
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
	})
}

// A partition whose workers have read an event with the greatest ID is measured too.
func TestBacklogBehindTheGreatestID(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx, k := t.Context(), newKeys(t, 4)
		greatest := "18446744073709551615-18446744073709551615"
		event := &redis.XAddArgs{Stream: k.Events(1), ID: greatest, Values: []any{"key", "k"}}
		testkit.Must(t, c.XAdd(ctx, event).Err())
		r := newReader(t, c, k, "a")
		testkit.Must(t, r.CreateGroups(ctx))
		read(t, r, -1)
		list, err := eventlog.Backlogs(ctx, c, k)
		if b, ok := list[1]; err != nil || !ok || b.Unread || b.NowMs == 0 || b.Pending != 1 {
			t.Errorf("%+v, %t, %v", b, ok, err)
		}
	})
}
