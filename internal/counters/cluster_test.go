package counters_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

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
			s := newStore(t, client, client, client, nil)
			eachTimeline(t, func(rt *rapid.T, prefix string) { newTimeline(rt, s, a, prefix).run() })
		}
	})
	t.Run("windows of several algorithms equal the recount", func(t *testing.T) {
		s := newStore(t, client, client, client, nil)
		eachTimeline(t, func(rt *rapid.T, prefix string) { newMixedTimeline(rt, s, prefix).run() })
	})
	t.Run("the stories are as on one Redis", func(t *testing.T) {
		testkit.Stories(t, func(t *testing.T, _, rules string, steps []string) []string {
			return tell(t, newStore(t, client, client, client, nil), windows.DefaultAlgorithm, rules, steps)
		})
	})
	t.Run("a reservation that ends while its slot moves", func(t *testing.T) {
		reservationsEndWhileTheirSlotMoves(t, c, newStore(t, client, client, client, nil))
	})
	t.Run("a log that starts over while its slot moves", func(t *testing.T) {
		logsStartOverWhileTheirSlotMoves(t, c, newStore(t, client, client, client, nil))
	})
	t.Run("a clock that is ahead", func(t *testing.T) { aClockThatIsAhead(t, c) })
	t.Run("leases keep the limit", func(t *testing.T) {
		leasesKeepTheLimit(t, newStore(t, client, client, client, nil))
	})
}

// While a slot moves, Redis refuses each command on a key that is gone, also within a call, and also if the call itself
// has emptied that key. So the last reservation of a key must end with one command on the key's reservations.
func reservationsEndWhileTheirSlotMoves(t *testing.T, c *streamtest.RedisCluster, s *store) {
	y := newStory(t, s, windows.DefaultAlgorithm,
		`rules: [{name: api, match: "*", windows: [{limit: 100, per: 1h}], alerts: [10%]}]`)
	outbox, slot := s.keys.Outbox(s.keys.Partition("k")), c.Slot(s.keys.Outbox(s.keys.Partition("k")))
	y.tell([]string{"> check k 20", "> reserve other 1 1h k", "> commit other 1"})
	for _, row := range []struct {
		begin, end string
		used       string
	}{
		{"reserve a 5 3s k", "advance 4s", "26"},
		{"reserve b 5 3s k", "commit b 7", "33"},
		{"reserve c 5 3s k", "cancel c", "33"},
		{"lease k 5 3s", "lease k 0 3s 2", "35"},
		{"lease k 5 3s", "lease k 8 3s 2", "45"},
		{"peek k", "advance 4s", "45"},
	} {
		y.tell([]string{"> " + row.begin})
		testkit.Must(t, s.redis.XGroupCreateMkStream(t.Context(), outbox, "keeps", "0").Err()) // all keys are there
		end := c.BeginMigration(slot, c.OtherMaster(slot))
		y.tell([]string{"> " + row.end})
		end()
		y.tell([]string{"> reserve next 1 1h k", "> cancel next"})
		if got := y.tell([]string{"> peek k"})[1]; got != "< "+row.used+" of 100 per 1h0m0s" {
			t.Errorf("%s, %s: %s, want %s", row.begin, row.end, got, row.used)
		}
	}
}

// A log that starts over is not emptied first: Redis would refuse its new entry.
func logsStartOverWhileTheirSlotMoves(t *testing.T, c *streamtest.RedisCluster, s *store) {
	for i, row := range []struct{ algorithm, units string }{{windows.DefaultAlgorithm, "5000"},
		{windows.DefaultAlgorithm, "450000"}, {"sliding-log-zset", "5000"}, {"sliding-log-zset", "450000"}} {
		y := newStory(t, s, row.algorithm, `
rules: [{name: api, match: "*", windows: [{limit: 1000000, per: 1m}], algorithm: EACH, alerts: [1%]}]`)
		key := "k" + strconv.Itoa(i)
		p := s.keys.Partition(key)
		y.tell([]string{"> check " + key + " " + row.units, "> check " + key + " " + row.units, "> step 2m"})
		testkit.Must(t, s.redis.XGroupCreateMkStream(t.Context(), s.keys.Outbox(p), "keeps", "0").Err())
		end := c.BeginMigration(c.Slot(s.keys.Outbox(p)), c.OtherMaster(c.Slot(s.keys.Outbox(p))))
		got := y.tell([]string{"> check " + key + " 5"})[1]
		end()
		if !strings.HasPrefix(got, "< allowed; 5 of") {
			t.Errorf("%s, %s units: %s", row.algorithm, row.units, got)
		}
	}
}

// Each partition is due by the clock of its node.
func aClockThatIsAhead(t *testing.T, c *streamtest.RedisCluster) {
	ctx, client := t.Context(), stream.NewCluster(&redis.ClusterOptions{Addrs: c.Addrs()[:3]})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client, client, client, nil)
	s.store.Now = nil
	node := c.MasterOf(c.Slot(s.keys.Events(0)))
	client.OnNewNode(func(n *redis.Client) {
		if n.Options().Addr != node {
			return
		}
		n.AddHook(streamtest.OnCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			err := next(ctx, cmd)
			if t, ok := cmd.(*redis.TimeCmd); ok {
				t.SetVal(t.Val().Add(time.Hour))
			}
			return err
		}))
	})
	for p := range s.keys.Partitions {
		testkit.Must(t, client.ZAdd(ctx, s.keys.Due(p), redis.Z{Score: float64(p + 1), Member: "user:1"}).Err())
	}
	due, err := s.store.NextDue(ctx, s.keys.All())
	if err != nil || len(due) != s.keys.Partitions {
		t.Fatalf("due: %v, %v", due, err)
	}
	soon, nodes := time.Now().Add(30*time.Minute).UnixMilli(), map[bool]bool{}
	for p, n := range due {
		if n.DueMs != int64(p+1) {
			t.Errorf("partition %d is due at %d, want %d", p, n.DueMs, p+1)
		}
		isAhead, holds := n.NowMs > soon, c.MasterOf(c.Slot(s.keys.Events(p))) == node
		if isAhead != holds {
			t.Errorf("partition %d: the clock is ahead: %v, want %v", p, isAhead, holds)
		}
		nodes[isAhead] = true
	}
	if len(nodes) != 2 {
		t.Error("all partitions lie on one node: nothing was tested")
	}
}
