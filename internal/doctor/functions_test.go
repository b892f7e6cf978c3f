package doctor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/doctor"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// Prune deletes the libraries of other versions that no process uses. It keeps the library of this version, those
// that a process has announced, and libraries that are not ours.
func TestPrune(t *testing.T) {
	c := streamtest.Connect(t, streamtest.OwnRedis(t).URL())
	ctx := t.Context()
	keys, err := stream.NewKeys("sc", 1)
	testkit.Must(t, err)
	l := lua.Library()
	for _, name := range []string{l.Name, "streamcounter_old", "streamcounter_used", "streamcounter_ended", "theirs"} {
		testkit.Must(t, c.FunctionLoad(ctx, strings.ReplaceAll(l.Text, l.Name, name)).Err())
	}
	now := c.Time(ctx).Val()
	testkit.Must(t, c.ZAdd(ctx, keys.Libraries(),
		redis.Z{Member: "streamcounter_used", Score: float64(now.Add(time.Minute).UnixMilli())},
		redis.Z{Member: "streamcounter_ended", Score: float64(now.Add(-time.Minute).UnixMilli())}).Err())
	deleted, err := doctor.Prune(ctx, c, keys)
	if got := strings.Join(deleted, " "); err != nil || got != "streamcounter_ended streamcounter_old" &&
		got != "streamcounter_old streamcounter_ended" {
		t.Errorf("deleted %q, %v", got, err)
	}
	list, err := c.FunctionList(ctx, redis.FunctionListQuery{}).Result()
	testkit.Must(t, err)
	if len(list) != 3 {
		t.Errorf("%d libraries are left, want 3", len(list))
	}
}
