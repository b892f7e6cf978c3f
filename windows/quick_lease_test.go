package windows_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// contents gives what Redis has below a prefix, without the prefix.
func contents(t rapid.TB, c *redis.Client, prefix string) map[string]any {
	ctx, out := context.Background(), map[string]any{}
	keys, err := c.Keys(ctx, prefix+":*").Result()
	testkit.Must(t, err)
	for _, key := range keys {
		var got any
		switch kind := c.Type(ctx, key).Val(); kind {
		case "stream":
			var entries []redis.XMessage
			entries, err = c.XRange(ctx, key, "-", "+").Result()
			for i := range entries {
				if strings.HasSuffix(key, ":outbox") {
					entries[i].ID = "by the server's own clock"
				}
			}
			got = entries
		case "hash":
			got, err = c.HGetAll(ctx, key).Result()
		case "zset":
			got, err = c.ZRangeWithScores(ctx, key, 0, -1).Result()
		default:
			got = kind
		}
		testkit.Must(t, err)
		expires := c.PTTL(ctx, key).Val().Round(10 * time.Second) // by the server's own clock
		out[strings.TrimPrefix(key, prefix)] = fmt.Sprint(expires, " ", got)
	}
	return out
}

// What the quick script answers and writes is what the general one does, whatever else happens to the key.
func TestQuickRenewalsAreTheGeneralOnes(t *testing.T) {
	hot := &windows.Rule{Name: "api", Match: "*", Alerts: []int{80}, Lease: 100 * time.Millisecond,
		Windows: []windows.Window{{Limit: 300, Per: time.Second}, {Limit: 700, Per: 3 * time.Second}}}
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		prefix, run, quick := streamtest.Prefix(t), 0, int64(0)
		rapid.Check(t, func(rt *rapid.T) {
			run++
			clock, plan, ctx := int64(1_700_000_000_000), planOf(rulesOf(t, hot)), context.Background()
			prefixes := []string{fmt.Sprint(prefix, "-g", run), fmt.Sprint(prefix, "-q", run)}
			var stores [2]*windows.Redis
			for i := range stores {
				keys, err := stream.NewKeys(prefixes[i], 2)
				testkit.Must(rt, err)
				stores[i] = windows.NewRedis(c, keys)
				stores[i].Now = func() int64 { return clock }
			}
			stores[0].LeaveToGeneral(true)
			units := map[string]int64{} // of each lease
			both := func(do func(s *windows.Redis) (any, error)) (got [2]any) {
				for i, s := range stores {
					one, err := do(s)
					testkit.Must(rt, err)
					got[i] = one
				}
				if diff := cmp.Diff(got[0], got[1]); diff != "" {
					rt.Fatalf("the quick one (+) answers something else:\n%s", diff)
				}
				return got
			}
			for range rapid.IntRange(1, 40).Draw(rt, "steps") {
				switch rapid.SampledFrom([]string{"renew", "renew", "renew", "renew", "check", "advance", "advance",
					"reset"}).Draw(rt, "step") {
				case "renew":
					id := rapid.SampledFrom([]string{"leasea", "leaseb", "leasec"}).Draw(rt, "lease")
					ask := windows.Renewal{Used: rapid.Int64Range(0, units[id]).Draw(rt, "used"),
						Want:  rapid.Int64Range(0, 60).Draw(rt, "want"),
						Least: rapid.Int64Range(1, 3).Draw(rt, "least")}
					ask.Keep = rapid.Int64Range(0, min(units[id]-ask.Used, ask.Want)).Draw(rt, "keep")
					ttl := time.Duration(rapid.SampledFrom([]int{125, 400}).Draw(rt, "ttl")) * time.Millisecond
					lease := windows.Lease{Key: "k", TTL: ttl, Units: units[id]}
					got := both(func(s *windows.Redis) (any, error) {
						lease.ID = s.ReservationID(id, []windows.Request{{Key: "k"}})
						return s.RenewLease(ctx, plan, lease, ask)
					})
					units[id] = got[0].(windows.Leased).Units
				case "check":
					cost := rapid.Int64Range(1, 30).Draw(rt, "cost")
					both(func(s *windows.Redis) (any, error) {
						return s.Check(ctx, []windows.Request{{Plan: plan, Key: "k", Cost: cost}})
					})
				case "advance":
					clock += rapid.Int64Range(0, 110).Draw(rt, "ms")
				case "reset":
					both(func(s *windows.Redis) (any, error) { return s.Reset(ctx, plan, "k") })
				}
				if diff := cmp.Diff(contents(rt, c, prefixes[0]), contents(rt, c, prefixes[1])); diff != "" {
					rt.Fatalf("the quick one (+) writes something else:\n%s", diff)
				}
			}
			quick += stores[1].AnsweredQuick()
		})
		if quick < int64(run)/4 { // about two in each
			t.Errorf("%d renewals were quick in %d runs: this proves too little", quick, run)
		}
	})
}
