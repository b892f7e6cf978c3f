package windows_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

// TestCounterEqualsRecount drives random timelines (a clock that stands still
// or jumps, costs up to the limit, one to three windows from 10 ms to 31 days,
// events folded late, resets) and holds every field of every reply against a
// naive recount.
func TestCounterEqualsRecount(t *testing.T) {
	eachStore(t, nil, func(t *testing.T, s *store) {
		run := 0
		rapid.Check(t, func(rt *rapid.T) {
			run++
			recount(rt, s, fmt.Sprintf("user:%d-", run))
		})
	})
}

func recount(t *rapid.T, s *store, prefix string) {
	ctx := context.Background()
	rule := &windows.Rule{Name: "r", Match: "*", Algorithm: windows.DefaultAlgorithm, Alerts: []int{80}, Hold: time.Second}
	var limits []streamtest.OracleWindow
	used := map[int64]bool{}
	for range rapid.IntRange(1, 3).Draw(t, "windows") {
		w := rapid.SampledFrom([]int64{10, 100, 1000, 1900, 60_000, 3_600_000, 31 * 86_400_000}).Draw(t, "window")
		if used[w] {
			continue
		}
		used[w] = true
		limit := rapid.Int64Range(1, 30).Draw(t, "limit")
		rule.Windows = append(rule.Windows, windows.Window{Limit: limit, Per: ms(w)})
		limits = append(limits, streamtest.OracleWindow{Ms: w, Limit: limit})
	}
	rules, err := windows.NewRules([]*windows.Rule{rule})
	if err != nil {
		t.Fatal(err)
	}
	rule = rules.List()[0]
	s.rules = rules
	span := rule.Longest().Milliseconds()
	// Times are multiples of a grid above the resolution, so that folding merges
	// only events of the same moment.
	grid := rule.Resolution().Milliseconds() + 1
	s.clock.ms += 2*31*86_400_000 + (grid - s.clock.ms%grid)
	oracle := &streamtest.Oracle{}
	var appended int64 // the newest event's time: the log's IDs only grow
	keys := []string{prefix + "a", prefix + "b{" + prefix + "a}"}
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		key := rapid.SampledFrom(keys).Draw(t, "key")
		switch rapid.SampledFrom([]string{"advance", "check", "check", "check", "both", "fold", "peek", "reset"}).Draw(t, "step") {
		case "advance":
			s.clock.ms += grid * rapid.Int64Range(0, span/grid/3+1).Draw(t, "by")
		case "check":
			cost := rapid.Int64Range(1, rule.Smallest()).Draw(t, "cost")
			checkOne(t, s, oracle, rule, limits, key, cost)
		case "both":
			cost := rapid.Int64Range(1, rule.Smallest()).Draw(t, "cost")
			v, err := s.Check(ctx, []windows.Ask{{Rule: rule, Key: keys[0], Cost: cost}, {Rule: rule, Key: keys[1], Cost: 1}})
			if err != nil {
				t.Fatal(err)
			}
			want := oracle.Admits(keys[0], s.clock.ms, cost, limits) && oracle.Admits(keys[1], s.clock.ms, 1, limits)
			if v.Allowed != want || !v.Atomic {
				t.Fatalf("both: allowed %v atomic %v, recount says %v", v.Allowed, v.Atomic, want)
			}
			if want {
				oracle.Add(keys[0], s.clock.ms, cost)
				oracle.Add(keys[1], s.clock.ms, 1)
			}
		case "fold":
			lag := grid * rapid.Int64Range(0, min(span/grid/2, 1000)).Draw(t, "lag")
			at := max(s.clock.ms-lag, appended)
			appended = at
			count := rapid.Int64Range(1, 10).Draw(t, "count")
			s.fold(t, rule, windows.Event{Key: key, Ms: at, Count: count})
			if at > s.clock.ms-span {
				oracle.Add(key, at, count)
			}
		case "peek":
			st, err := s.Peek(ctx, rule, key)
			if err != nil {
				t.Fatal(err)
			}
			compareUse(t, s, oracle, limits, key, st)
		case "reset":
			if _, err := s.Reset(ctx, rule, key); err != nil {
				t.Fatal(err)
			}
			oracle.Reset(key)
		}
	}
}

func checkOne(t *rapid.T, s *store, oracle *streamtest.Oracle, rule *windows.Rule, limits []streamtest.OracleWindow, key string, cost int64) {
	ctx := context.Background()
	v, err := s.Check(ctx, []windows.Ask{{Rule: rule, Key: key, Cost: cost}})
	if err != nil {
		t.Fatal(err)
	}
	want, retry := oracle.Admits(key, s.clock.ms, cost, limits), oracle.RetryAfter(key, s.clock.ms, cost, limits)
	if v.Allowed != want || v.Items[0].RetryAfter != ms(retry) {
		t.Fatalf("check of %d at %d: allowed %v, retry after %v; recount says %v, %v", cost, s.clock.ms, v.Allowed, v.Items[0].RetryAfter, want, ms(retry))
	}
	if want {
		oracle.Add(key, s.clock.ms, cost)
	}
	compareUse(t, s, oracle, limits, key, v.Items[0])
}

func compareUse(t *rapid.T, s *store, oracle *streamtest.Oracle, limits []streamtest.OracleWindow, key string, st windows.Standing) {
	now := s.clock.ms
	for i, w := range limits {
		used, got := oracle.Used(key, now, w.Ms), st.Windows[i]
		if got.Used != used {
			t.Fatalf("window %d at %d: used %d, recount says %d", w.Ms, now, got.Used, used)
		}
		if used == 0 {
			continue
		}
		// One ms before, all is as it is; then the first units are back, then all.
		more, reset := got.More.Milliseconds(), got.Reset.Milliseconds()
		if oracle.Used(key, now+more-1, w.Ms) != used || oracle.Used(key, now+more, w.Ms) == used {
			t.Fatalf("window %d at %d: units are said to come back in %d ms", w.Ms, now, more)
		}
		if oracle.Used(key, now+reset-1, w.Ms) == 0 || oracle.Used(key, now+reset, w.Ms) != 0 {
			t.Fatalf("window %d at %d: it is said to be empty in %d ms", w.Ms, now, reset)
		}
	}
}
