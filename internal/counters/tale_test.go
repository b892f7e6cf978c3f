package counters_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// tale runs steps against a store and expects what each writes to the outbox, for cases
// that a story (testdata/stories) cannot test.
type tale struct {
	t testing.TB
	s *store
}

func (x tale) check(key string, cost int64) counters.Verdict {
	x.t.Helper()
	v, err := x.s.Check(context.Background(), []counters.Request{{Plan: x.s.rules.Match(key), Key: key, Cost: cost}})
	testkit.Must(x.t, err)
	return v
}

func (x tale) expect(want ...string) {
	x.t.Helper()
	if want == nil {
		want = []string{}
	}
	if diff := cmp.Diff(want, x.s.transitions(x.t)); diff != "" {
		x.t.Fatalf("transitions (-want +got):\n%s", diff)
	}
}

func (x tale) after(d time.Duration) {
	x.s.clock.ms += d.Milliseconds()
	x.s.sweep(x.t)
}

// due returns when the key is due to be swept, in ms from now; -1: never.
func (x tale) due(key string) int64 {
	x.t.Helper()
	score, err := x.s.redis.ZScore(context.Background(), x.s.keys.Due(x.s.keys.Partition(key)), key).Result()
	if err == redis.Nil {
		return -1
	}
	testkit.Must(x.t, err)
	return int64(score) - x.s.clock.ms
}

func apiRule(change func(*windows.Rule)) *windows.Rule {
	r := &windows.Rule{Name: "api", Match: "*", Windows: []windows.Window{{Limit: 10, Per: 10 * time.Second}},
		Alerts: []int{80, 95}, Hold: time.Second}
	if change != nil {
		change(r)
	}
	return r
}
