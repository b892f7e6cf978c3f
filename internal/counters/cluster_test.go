package counters_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// TestRedisCluster runs all operations that count on a Cluster, where keys in the
// wrong slot, undeclared keys and commands over several slots are errors.
func TestRedisCluster(t *testing.T) {
	c := streamtest.Cluster(t)
	client := stream.NewCluster(&redis.ClusterOptions{Addrs: c.Addrs()[:3], ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	t.Run("every algorithm equals the recount", func(t *testing.T) {
		for _, a := range windows.Algorithms {
			s, run := newStore(t, client, client, client, nil), 0
			rapid.Check(t, func(rt *rapid.T) {
				run++
				newTimeline(rt, s, a, fmt.Sprintf("user:%d-", run)).run()
			})
		}
	})
	t.Run("windows of several algorithms equal the recount", func(t *testing.T) {
		s, run := newStore(t, client, client, client, nil), 0
		rapid.Check(t, func(rt *rapid.T) {
			run++
			newMixedTimeline(rt, s, fmt.Sprintf("user:%d-", run)).run()
		})
	})
	t.Run("a penalty", func(t *testing.T) {
		s := newStore(t, client, client, client, rulesOf(t, &windows.Rule{Name: "r", Match: "*",
			Windows: []windows.Window{{Limit: 2, Per: time.Second}}, Penalty: []time.Duration{time.Minute}}))
		x := tale{t, s}
		x.check("k", 2)
		s.clock.ms += 2000
		if v := x.check("k", 1); v.Allowed || v.Items[0].RetryAfter != 58*time.Second {
			t.Errorf("2 s later: %+v", v)
		}
		if had, err := s.Reset(t.Context(), s.rules.Match("k"), "k"); !had || err != nil || !x.check("k", 1).Allowed {
			t.Errorf("after a reset: %v, %v", had, err)
		}
	})
	t.Run("levels, sweeps and resets", func(t *testing.T) { levelsOnACluster(t, client) })
	t.Run("a clock that is ahead", func(t *testing.T) { aClockThatIsAhead(t, c) })
	t.Run("leases keep the limit", func(t *testing.T) {
		leasesKeepTheLimit(t, newStore(t, client, client, client, nil))
	})
}

// Keys of many partitions are throttled by events and released by sweeps.
func levelsOnACluster(t *testing.T, client redis.UniversalClient) {
	ctx := context.Background()
	rules := rulesOf(t, &windows.Rule{Name: "r", Match: "*", Windows: []windows.Window{{Limit: 2, Per: time.Minute}},
		Hold: time.Second})
	s := newStore(t, client, client, client, rules)
	rule := planOf(rules)
	var keys []string
	for i := range 12 {
		key := fmt.Sprintf("user:%d", i)
		keys = append(keys, key)
		s.fold(t, rule, counters.Event{Ms: s.clock.ms, Key: key, Count: 2})
	}
	slices.Sort(keys)
	if got := throttled(t, s); !slices.Equal(slices.Sorted(slices.Values(got)), keys) {
		t.Errorf("throttled: %v, want %v", got, keys)
	}
	if had, err := s.Reset(ctx, rule, "user:0"); err != nil || !had {
		t.Errorf("reset: %v, %v", had, err)
	}
	if got := throttled(t, s); len(got) != 11 {
		t.Errorf("throttled after a reset: %v", got)
	}
	due, err := s.store.NextDue(ctx, s.keys.All())
	if err != nil || len(due) == 0 {
		t.Errorf("due: %v, %v", due, err)
	}
	s.clock.ms += 61_000
	s.sweep(t)
	if got := throttled(t, s); len(got) != 0 {
		t.Errorf("throttled after the window: %v", got)
	}
	released := 0
	for _, line := range s.transitions(t) {
		if line[:8] == "released" {
			released++
		}
	}
	if released != 12 {
		t.Errorf("%d keys were released, want 12", released)
	}
}

// Each partition is due by the clock of its node.
func aClockThatIsAhead(t *testing.T, c *streamtest.RedisCluster) {
	ctx := context.Background()
	var asked atomic.Int64
	ahead := streamtest.OnCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		err := next(ctx, cmd)
		if t, ok := cmd.(*redis.TimeCmd); ok {
			asked.Add(1)
			t.SetVal(t.Val().Add(time.Hour))
		}
		return err
	})
	client := stream.NewCluster(&redis.ClusterOptions{Addrs: c.Addrs()[:3]})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client, client, client, nil)
	s.store.Now = nil
	node := c.MasterOf(c.Slot(s.keys.Events(0)))
	client.OnNewNode(func(n *redis.Client) {
		if n.Options().Addr == node {
			n.AddHook(ahead)
		}
	})
	for p := range s.keys.Partitions {
		testkit.Must(t, client.ZAdd(ctx, s.keys.Due(p), redis.Z{Score: float64(p + 1), Member: "user:1"}).Err())
	}
	due, err := s.store.NextDue(ctx, s.keys.All())
	if err != nil || len(due) != s.keys.Partitions {
		t.Fatalf("due: %v, %v", due, err)
	}
	true_, behind := time.Now().UnixMilli(), 0
	for p, n := range due {
		if n.DueMs != int64(p+1) {
			t.Errorf("partition %d is due at %d, want %d", p, n.DueMs, p+1)
		}
		isAhead := n.NowMs > true_+30*60_000
		if holds := c.MasterOf(c.Slot(s.keys.Events(p))) == node; isAhead != holds {
			t.Errorf("partition %d: the clock is ahead: %v, want %v", p, isAhead, holds)
		}
		if !isAhead {
			behind++
		}
	}
	if behind == 0 || asked.Load() == 0 {
		t.Error("all partitions lie on one node: nothing was tested")
	}
}
