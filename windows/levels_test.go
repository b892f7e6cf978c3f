package windows_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// tell runs steps against a store and says what each wrote to the outbox.
type tale struct {
	t testing.TB
	s *store
}

func (x tale) check(key string, cost int64) windows.Verdict {
	x.t.Helper()
	v, err := x.s.Check(context.Background(), []windows.Request{{Plan: x.s.rules.Match(key), Key: key, Cost: cost}})
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

// due is when the key is to be looked at again, in ms from now; -1: never.
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

func TestLevelsRiseAndFall(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
		x := tale{t, s}
		x.check("k", 7)
		x.expect()
		x.after(2 * time.Second)
		x.check("k", 1)
		x.expect("raised api/k 80% used 8")
		x.after(time.Second)
		x.check("k", 2)
		x.expect("raised api/k 95% used 10", "raised api/k 100% used 10", "throttled api/k 100% used 10")
		if v := x.check("k", 1); v.Allowed || v.Items[0].RetryAfter != 7*time.Second ||
			v.Items[0].Windows[0].Used != 10 {
			t.Fatalf("an eleventh unit: %+v", v)
		}
		x.expect() // a denied check writes nothing
		if due := x.due("k"); due != 7000 {
			t.Fatalf("due in %d ms, expected 7000", due)
		}
		x.after(6999 * time.Millisecond)
		x.expect()
		x.after(time.Millisecond) // the first 7 units leave
		x.expect("released api/k 100% used 3", "cleared api/k 100% used 3", "cleared api/k 95% used 3",
			"cleared api/k 80% used 3")
		if due := x.due("k"); due != -1 {
			t.Fatalf("due in %d ms, expected never", due)
		}
	})
}

func TestLevelsFallOneByOne(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
		x := tale{t, s}
		for range 10 {
			x.check("k", 1)
			s.clock.ms += 500
		}
		x.expect("raised api/k 80% used 8", "raised api/k 95% used 10", "raised api/k 100% used 10",
			"throttled api/k 100% used 10")
		x.after(5 * time.Second) // the first unit leaves: 9 of 10 stay above 80%
		x.expect("released api/k 100% used 9", "cleared api/k 100% used 9", "cleared api/k 95% used 9")
		if due := x.due("k"); due != 1000 {
			t.Fatalf("due in %d ms, expected 1000: when the third unit has left, 7 remain", due)
		}
		x.after(time.Second)
		x.expect("cleared api/k 80% used 7")
	})
}

func TestHoldBoundsMessages(t *testing.T) {
	rule := apiRule(func(r *windows.Rule) {
		r.Windows = []windows.Window{{Limit: 1, Per: 10 * time.Millisecond}}
		r.Alerts = nil
	})
	eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
		x := tale{t, s}
		x.check("k", 1)
		x.expect("raised api/k 100% used 1", "throttled api/k 100% used 1")
		for range 99 { // the key comes and goes every 10 ms
			x.after(10 * time.Millisecond)
			x.check("k", 1)
		}
		x.expect()
		x.after(10 * time.Millisecond) // a second is over
		x.expect("released api/k 100% used 0", "cleared api/k 100% used 0")
	})
}

func TestThrottleIsRenewedWhileItLasts(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(func(r *windows.Rule) { r.Alerts = nil })), func(t *testing.T, s *store) {
		x := tale{t, s}
		add := func() { s.fold(t, s.rules.Match("k"), windows.Event{Key: "k", Ms: s.clock.ms, Count: 5}) }
		add()
		add()
		x.expect("raised api/k 100% used 10", "throttled api/k 100% used 10")
		for range 4 { // producers go on: nobody denies what they append
			x.after(2500 * time.Millisecond)
			add()
		}
		x.expect("throttled api/k 100% used 15 r") // as the first decision ran out
		x.after(10 * time.Second)
		x.expect("released api/k 100% used 0", "cleared api/k 100% used 0")
	})
}

func TestOneDecisionForSeveralWindows(t *testing.T) {
	rule := apiRule(func(r *windows.Rule) {
		r.Alerts = nil
		r.Windows = []windows.Window{{Limit: 5, Per: 2 * time.Second}, {Limit: 8, Per: 20 * time.Second}}
	})
	eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
		x := tale{t, s}
		x.check("k", 5)
		x.expect("raised api/k 100% used 5", "throttled api/k 100% used 5")
		x.after(1999 * time.Millisecond)
		x.expect()
		x.after(time.Millisecond)
		x.expect("released api/k 100% used 0", "cleared api/k 100% used 0")
		x.check("k", 3)
		x.expect("raised api/k 100% used 8", "throttled api/k 100% used 8")
		s.fold(t, planOf(s.rules), windows.Event{Key: "k", Ms: s.clock.ms + 5, Count: 2})
		x.expect("raised api/k 100% used 5") // the short window too; the long one speaks for the key
		x.after(3 * time.Second)             // the short window is free: the key stays throttled
		x.expect("cleared api/k 100% used 0")
		x.after(15 * time.Second)
		x.expect("released api/k 100% used 5", "cleared api/k 100% used 5")
	})
}

func TestShadowNeverDenies(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(func(r *windows.Rule) { r.Shadow, r.Alerts = true, nil })),
		func(t *testing.T, s *store) {
			x := tale{t, s}
			x.check("k", 10)
			if v := x.check("k", 5); !v.Allowed || v.Items[0].Shadows[0].RetryAfter != 10*time.Second ||
				v.Items[0].Shadows[0].Windows[0].Used != 15 {
				t.Fatalf("a shadow rule: %+v", v)
			}
			x.expect("raised api/k 100% used 10 s", "throttled api/k 100% used 10 s")
			if v := x.check("fresh", 25); !v.Allowed || v.Items[0].Shadows[0].RetryAfter >= 0 {
				t.Fatalf("a cost that no window could hold: %+v, expected a retry below 0: never", v)
			}
		})
}

func TestResetEndsLevels(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
		x := tale{t, s}
		x.check("k", 10)
		s.transitions(t)
		if had, err := s.Reset(context.Background(), s.rules.Match("k"), "k"); err != nil || !had {
			t.Fatalf("reset: %v, %v", had, err)
		}
		x.expect("released api/k 100% used 0", "cleared api/k 100% used 0", "cleared api/k 95% used 0",
			"cleared api/k 80% used 0")
		if v := x.check("k", 7); !v.Allowed {
			t.Fatal("denied after a reset")
		}
	})
}

func TestRulesChangeWhileKeysStandAtLevels(t *testing.T) {
	ctx := context.Background()
	all := func(t *testing.T, s *store) {
		t.Helper()
		for p := range s.keys.Partitions {
			keys, err := s.store.Levelled(ctx, p)
			testkit.Must(t, err)
			if _, _, err := s.store.Sweep(ctx, p, s.rules, keys); err != nil {
				t.Fatal(err)
			}
		}
	}
	begin := []string{"raised api/k 80% used 10", "raised api/k 95% used 10", "raised api/k 100% used 10",
		"throttled api/k 100% used 10"}
	for _, c := range []struct {
		name string
		now  []*windows.Rule
		want []string
	}{
		{"higher limit", []*windows.Rule{apiRule(func(r *windows.Rule) { r.Windows[0].Limit = 12 })},
			[]string{"released api/k 100% used 10", "cleared api/k 100% used 10", "cleared api/k 95% used 10"}},
		{"other name", []*windows.Rule{apiRule(func(r *windows.Rule) { r.Name, r.Alerts = "new", nil })},
			[]string{"released api/k 100% used 0", "cleared api/k 100% used 0", "cleared api/k 95% used 0",
				"cleared api/k 80% used 0",
				"raised new/k 100% used 10", "throttled new/k 100% used 10"}},
		{"no rule", []*windows.Rule{apiRule(func(r *windows.Rule) { r.Match = "other:*" })},
			[]string{"released api/k 100% used 0", "cleared api/k 100% used 0", "cleared api/k 95% used 0",
				"cleared api/k 80% used 0"}},
		{"shadow", []*windows.Rule{apiRule(func(r *windows.Rule) { r.Shadow = true })},
			[]string{"throttled api/k 100% used 10 sr"}},
		{"longer hold", []*windows.Rule{apiRule(func(r *windows.Rule) { r.Hold = time.Minute })},
			[]string{"throttled api/k 100% used 10 r"}},
		{"other algorithm", []*windows.Rule{apiRule(func(r *windows.Rule) { r.Algorithm = "fixed-window" })},
			[]string{"released api/k 100% used 0", "cleared api/k 100% used 0", "cleared api/k 95% used 0",
				"cleared api/k 80% used 0"}},
		{"limit that the key is still over", []*windows.Rule{apiRule(func(r *windows.Rule) { r.Windows[0].Limit = 5 })},
			[]string{"throttled api/k 100% used 10 r"}},
		{"other alerts", []*windows.Rule{apiRule(func(r *windows.Rule) { r.Alerts = []int{70, 95} })},
			[]string{"raised api/k 70% used 10", "cleared api/k 80% used 10"}},
		{"other window", []*windows.Rule{apiRule(func(r *windows.Rule) {
			r.Windows[0].Per, r.Windows[0].Limit,
				r.Alerts = 5*time.Second, 100, nil
		})},
			[]string{"released api/k 100% used 0", "cleared api/k 100% used 0", "cleared api/k 95% used 0",
				"cleared api/k 80% used 0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
				x := tale{t, s}
				x.check("k", 10)
				x.expect(begin...)
				s.rules = rulesOf(t, c.now...)
				all(t, s)
				x.expect(c.want...)
			})
		})
	}
}

// A sweep that comes early changes nothing, and the key is looked at again when it is due.
func TestASweepThatComesEarly(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
		x, p := tale{t, s}, s.keys.Partition("k")
		x.check("k", 10)
		s.transitions(t)
		for _, wait := range []time.Duration{0, 4 * time.Second, 5999 * time.Millisecond} {
			s.clock.ms += wait.Milliseconds()
			if _, _, err := s.store.Sweep(t.Context(), p, s.rules, []string{"k"}); err != nil {
				t.Fatal(err)
			}
			x.expect()
			if due := x.due("k"); due != start+10_000-s.clock.ms {
				t.Fatalf("due in %d ms, expected %d", due, start+10_000-s.clock.ms)
			}
		}
		x.after(time.Millisecond)
		x.expect("released api/k 100% used 0", "cleared api/k 100% used 0", "cleared api/k 95% used 0",
			"cleared api/k 80% used 0")
	})
}

// At 90 of 100 the alert at 80% becomes one at 70%.
func TestALoweredAlertIsRaised(t *testing.T) {
	rules := func(pct int) *windows.Rules {
		return rulesOf(t, apiRule(func(r *windows.Rule) { r.Alerts, r.Windows[0].Limit = []int{pct}, 100 }))
	}
	eachRedis(t, rules(80), func(t *testing.T, s *store) {
		x := tale{t, s}
		x.check("k", 90)
		x.expect("raised api/k 80% used 90")
		s.rules = rules(70)
		x.check("k", 1)
		x.expect("raised api/k 70% used 91")
		if _, _, err := s.store.Sweep(t.Context(), s.keys.Partition("k"), s.rules, []string{"k"}); err != nil {
			t.Fatal(err)
		}
		x.expect("cleared api/k 80% used 91")
		x.after(10 * time.Second)
		x.expect("cleared api/k 70% used 0")
	})
}

func TestSinceIsTheEventThatCrossed(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(func(r *windows.Rule) { r.Alerts = []int{50} })), func(t *testing.T, s *store) {
		var events []windows.Event
		for i := range int64(10) {
			events = append(events, windows.Event{Key: "k", Ms: start - 1000 + 100*i, Count: 1})
		}
		s.fold(t, s.rules.Match("k"), events...)
		list, err := s.redis.XRange(context.Background(), s.keys.Outbox(s.keys.Partition("k")), "-", "+").Result()
		if err != nil || len(list) != 3 {
			t.Fatalf("outbox: %v, %v", list, err)
		}
		for i, want := range []struct{ state, since, until string }{
			// the fifth event; free when 6 have left
			{"raised", fmt.Sprint(start - 1000 + 400), fmt.Sprint(start - 1000 + 500 + 10_000)},
			{"raised", fmt.Sprint(start - 1000 + 900), fmt.Sprint(start - 1000 + 10_000)},
			{"throttled", fmt.Sprint(start - 1000 + 900), fmt.Sprint(start - 1000 + 10_000)},
		} {
			got := list[i].Values
			if got["state"] != want.state || got["since"] != want.since || got["until"] != want.until ||
				got["at"] != fmt.Sprint(int64(start)) {
				t.Errorf("transition %d: %v, expected %+v", i, got, want)
			}
		}
	})
}

// The window that spoke for a throttle fell, as its limit was raised, while
// another still stands at the top; then the rule goes. The key is released all the same.
func TestReleasedWithoutTheWindowThatSpoke(t *testing.T) {
	two := func(long int64) *windows.Rules {
		return rulesOf(t, apiRule(func(r *windows.Rule) {
			r.Windows = []windows.Window{{Limit: 10, Per: 10 * time.Second}, {Limit: long, Per: 20 * time.Second}}
			r.Alerts = nil
		}))
	}
	eachRedis(t, two(10), func(t *testing.T, s *store) {
		ctx, p := context.Background(), s.keys.Partition("k")
		tale{t, s}.check("k", 10)
		for _, rules := range []*windows.Rules{two(100), rulesOf(t, apiRule(
			func(r *windows.Rule) { r.Match = "other" }))} {
			s.clock.ms += 2000
			if _, _, err := s.store.Sweep(ctx, p, rules, []string{"k"}); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.transitions(t); len(got) == 0 || !slices.ContainsFunc(got,
			func(x string) bool { return strings.HasPrefix(x, "released api/k") }) {
			t.Fatalf("transitions %v, no release", got)
		}
		if s.redis.HExists(ctx, s.keys.Levels(p), "k").Val() {
			t.Fatal("its record is left")
		}
	})
}
