package counters_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// A live rule and shadow rules of the same and of another exact algorithm, with checks and
// folds: at each step, each rule returns the same as when this process counts it alone.
func TestShadowRulesCountAsTheLiveOne(t *testing.T) {
	limits := func(r *rapid.T, name string) (list []windows.Window) {
		for i := range rapid.IntRange(1, 3).Draw(r, name) {
			per := []time.Duration{50 * time.Millisecond, 200 * time.Millisecond, time.Second}[i]
			list = append(list, windows.Window{Limit: int64(rapid.IntRange(1, 20).Draw(r, "limit")), Per: per})
		}
		return list
	}
	eachRedis(t, nil, func(t *testing.T, s *store) {
		round := 0
		rapid.Check(t, func(r *rapid.T) {
			round++
			prefix := fmt.Sprint("r", round, ":")
			s.rules = rulesOf(t,
				&windows.Rule{Name: "strict", Match: prefix + "*", Shadow: true, Windows: limits(r, "strict")},
				&windows.Rule{Name: "live", Match: prefix + "a*", Windows: limits(r, "live"), Alerts: []int{80}},
				&windows.Rule{Name: "other", Match: prefix + "*", Shadow: true, Algorithm: "sliding-log-zset",
					Windows: limits(r, "other")})
			s.clock.ms += 10_000
			local := counters.NewLocal(0, s.clock.now)
			for range rapid.IntRange(1, 25).Draw(r, "steps") {
				s.clock.ms += int64(rapid.IntRange(0, 60).Draw(r, "pause"))
				key := prefix + rapid.SampledFrom([]string{"a", "b"}).Draw(r, "key")
				plan := s.rules.Match(key)
				if rapid.IntRange(0, 2).Draw(r, "fold") == 0 {
					count := int64(rapid.IntRange(1, 5).Draw(r, "count"))
					s.fold(r, plan, counters.Event{Key: key, Ms: s.clock.ms, Count: count})
					local.Add(plan, key, s.clock.ms, count)
					continue
				}
				asks := []counters.Request{{Plan: plan, Key: key, Cost: int64(rapid.IntRange(1, 4).Draw(r, "cost"))}}
				got := s.decide(asks...)
				want, err := local.Check(context.Background(), asks)
				testkit.Must(t, err)
				got.Transitions = 0
				if diff := cmp.Diff(want, got); diff != "" {
					r.Fatalf("%s (-local +redis):\n%s", key, diff)
				}
			}
		})
	})
}
