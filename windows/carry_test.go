package windows_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// reloaded tells a store its rules, as a process does that has read changed ones.
func reloaded(x tale) tale {
	x.t.Helper()
	rules := x.s.rules
	var before []*windows.Rule // under every algorithm, so that keys may have counters of each
	for _, a := range windows.Algorithms {
		before = append(before, &windows.Rule{Name: a, Match: a, Algorithm: a, Windows: rules.List()[0].Windows})
	}
	x.s.rules = rulesOf(x.t, before...)
	testkit.Must(x.t, x.s.learn())
	x.s.rules = rules
	testkit.Must(x.t, x.s.learn())
	return x
}

// Where one exact algorithm alone was ever in use, a change of the rules makes no check dearer.
func TestOneAlgorithmCarriesNothing(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		scripts := &scriptCount{}
		s.redis.AddHook(scripts)
		counter := windows.NewRedis(s.redis, s.keys)
		window := windows.Window{Limit: 1000, Per: time.Hour}
		run := func(algorithm string, want int64) {
			t.Helper()
			rule := &windows.Rule{Name: "api", Match: "*", Algorithm: algorithm, Windows: []windows.Window{window}}
			rules := rulesOf(t, rule)
			testkit.Must(t, counter.RecordRules(t.Context(), rules))
			ask := []windows.Request{{Plan: planOf(rules), Key: "a", Cost: 1}}
			_, err := counter.Check(t.Context(), ask) // loads the scripts
			testkit.Must(t, err)
			scripts.n.Store(0)
			_, err = counter.Check(t.Context(), ask)
			testkit.Must(t, err)
			if n := scripts.n.Load(); n != want {
				t.Errorf("a check by %s over %s ran %d scripts, want %d", algorithm, window.Per, n, want)
			}
		}
		run("sliding-log", 1)
		window.Per = 2 * time.Hour
		run("sliding-log", 1)
		run("fixed-window", 1)
		run("sliding-log-packed", 2) // which looks for an old log first
		run("sliding-log", 2)
	})
}

// The plan that an override makes of a recorded rule is no sign of rules that are not recorded yet.
func TestAnOverrideCarriesNothing(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		scripts := &scriptCount{}
		s.redis.AddHook(scripts)
		counter := windows.NewRedis(s.redis, s.keys)
		overrides := windows.NewOverrides(counter, nil)
		hour := []windows.Window{{Limit: 1000, Per: time.Hour}}
		rules := rulesOf(t, &windows.Rule{Name: "api", Match: "*", Windows: hour},
			&windows.Rule{Name: "gold", Windows: hour}).With(overrides)
		testkit.Must(t, counter.RecordRules(t.Context(), rules))
		for key, o := range map[string]api.Override{
			"windows": {Windows: []api.OverrideWindow{{Limit: 500, Per: "1h"}}}, "rule": {Rule: "gold"},
			"exempt": {Exempt: true},
		} {
			o.Key = key
			_, err := overrides.Set(t.Context(), rules, o, time.Hour)
			testkit.Must(t, err)
			plan := rules.Match(key)
			if plan == rules.Written(key) {
				t.Fatalf("%s: there is no override", key)
			}
			ask := []windows.Request{{Plan: plan, Key: key, Cost: 1}}
			_, err = counter.Check(t.Context(), ask)
			testkit.Must(t, err)
			scripts.n.Store(0)
			_, err = counter.Check(t.Context(), ask)
			testkit.Must(t, err)
			if n := scripts.n.Load(); n != 1 {
				t.Errorf("a check under the override %s ran %d scripts, expected 1", key, n)
			}
		}
	})
}

// scriptCount counts scripts that are sent, and notes the most keys that one had.
type scriptCount struct{ n, most atomic.Int64 }

func (c *scriptCount) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *scriptCount) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			c.n.Add(1)
			if keys, ok := cmd.Args()[2].(int); ok && int64(keys) > c.most.Load() {
				c.most.Store(int64(keys))
			}
		}
		return next(ctx, cmd)
	}
}
func (c *scriptCount) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestReloadsBetweenExactAlgorithms is TestCounterEqualsRecount while the rule passes from one
// exact algorithm to another and back, at any time, whatever touches a key first.
func TestReloadsBetweenExactAlgorithms(t *testing.T) {
	var logs []string
	for _, a := range windows.Algorithms {
		if exact(a) {
			logs = append(logs, a)
		}
	}
	eachRedis(t, nil, func(t *testing.T, s *store) {
		run := 0
		rapid.Check(t, func(rt *rapid.T) {
			run++
			l := newTimeline(rt, s, rapid.SampledFrom(logs).Draw(rt, "first"), fmt.Sprintf("user:%d-", run))
			l.noRefunds = true // after which the clock of a key is another in each form
			reloaded(tale{t, s})
			for range rapid.IntRange(1, 6).Draw(rt, "reloads") {
				if rapid.IntRange(0, 3).Draw(rt, "many") == 0 {
					l.burst()
				}
				l.run()
				rule := *l.rule
				rule.Algorithm = rapid.SampledFrom(logs).Draw(rt, "next")
				s.rules = rulesOf(rt, &rule)
				l.rule, l.plan = s.rules.List()[0], planOf(s.rules)
				reloaded(tale{t, s})
			}
			l.run()
		})
	})
}

// Processes read changed rules at different times: what one with the old rules still counts
// after a key was carried is carried too.
func TestOldRulesCountForAWhile(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		for _, from := range windows.Algorithms {
			for _, to := range windows.Algorithms {
				if !exact(from) || !exact(to) || from == to {
					continue
				}
				key := from + to
				for i := range int64(6) { // in turn
					a := from
					if i%2 == 1 {
						a = to
					}
					x := reloaded(one(t, s, a, 1000, time.Hour))
					s.clock.ms += 10
					x.check(key, 5)
					if n := used(t, s, key); n != 5*(i+1) {
						t.Fatalf("%s to %s, step %d: used %d", from, to, i, n)
					}
				}
			}
		}
	})
}

// A shadow rule that becomes the live one has counted what the live one did: nothing counts twice.
func TestAShadowThatBecomesLiveCountsOnce(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		hour := []windows.Window{{Limit: 1000, Per: time.Hour}}
		live := &windows.Rule{Name: "live", Match: "*", Windows: hour}
		s.rules = rulesOf(t, live)
		x := tale{t, s}
		x.check("k", 7) // before the shadow
		s.clock.ms += 1000
		s.rules = rulesOf(t, live, &windows.Rule{Name: "next", Match: "*", Algorithm: packed, Windows: hour,
			Shadow: true})
		x.check("k", 5)
		s.clock.ms += 1000
		x.check("k", 3)
		s.rules = rulesOf(t, &windows.Rule{Name: "next", Match: "*", Algorithm: packed, Windows: hour})
		reloaded(x)
		if n := used(t, s, "k"); n != 15 {
			t.Fatalf("used %d, expected 15", n)
		}
		x.check("k", 1)
		if n := used(t, s, "k"); n != 16 {
			t.Fatalf("used %d, expected 16", n)
		}
	})
}

// Of a log of more entries than a script may write one by one, the newer ones are put together:
// they count longer by a thousandth of the window at most, never shorter.
func TestLargeLogsAreCarriedInOneStep(t *testing.T) {
	const entries, day = 50_000, 86_400_000
	s := securedStore(t, nil)
	for _, to := range lua.Exact() {
		if to == windows.DefaultAlgorithm {
			continue
		}
		from := one(t, s, windows.DefaultAlgorithm, windows.MaxLimit, 24*time.Hour)
		key := "large-" + to
		for i := int64(0); i < entries; {
			pipe := s.redis.Pipeline()
			for range 10_000 {
				i++
				pipe.Do(t.Context(), "XADD", from.counter(key), fmt.Sprintf("%d-*", start+i*day/entries), "count", 1,
					"total", i)
			}
			_, err := pipe.Exec(t.Context())
			testkit.Must(t, err)
		}
		s.clock.ms = start + day
		reloaded(one(t, s, to, windows.MaxLimit, 24*time.Hour))
		before := time.Now()
		if n := used(t, s, key); n < entries-1 || n > entries {
			t.Fatalf("%s: used %d of %d", to, n, entries)
		}
		t.Logf("%s: %d entries carried in %v", to, entries, time.Since(before))
		for _, hours := range []int64{1, 6, 12, 18, 23} {
			s.clock.ms = start + day + hours*3_600_000
			truth, n := entries-entries*hours/24, used(t, s, key)
			if n < truth || n > truth+entries/1000+1 {
				t.Errorf("%s: %d hours later used %d, expected %d or a little more", to, hours, n, truth)
			}
		}
	}
}
