package guard

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/subscription"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

const t0 = int64(1_700_000_000_000)

// deaf is a guard that receives its messages from the test, at times that the test chooses.
func deaf(t testing.TB, c Config) (g *Guard, now *int64) {
	t.Helper()
	now = new(int64)
	*now = t0
	c.Now, c.Log = func() int64 { return *now }, slog.New(slog.DiscardHandler)
	g, err := New(&nats.Conn{}, c)
	testkit.Must(t, err)
	return g, now
}

func message(t testing.TB, rule, key string, state api.State, at, expires int64, shadow bool) []byte {
	t.Helper()
	data, err := json.Marshal(api.Transition{Rule: rule, Key: key, State: state, Level: 100, Version: at, AtMs: at,
		UntilMs: expires, ExpiresMs: expires, Shadow: shadow})
	testkit.Must(t, err)
	return data
}

func sweepAll(g *Guard) {
	for range shards {
		g.sweep()
	}
}

func TestOlderVersionsAreIgnored(t *testing.T) {
	g, now := deaf(t, Config{})
	throttled := message(t, "api", "k", api.StateThrottled, t0, t0+60_000, false)
	g.apply(throttled)
	g.apply(message(t, "api", "k", api.StateReleased, t0+1000, 0, false))
	g.apply(throttled) // a late copy
	if g.Throttled("k") || g.Stats().Old != 1 {
		t.Errorf("a late copy throttles: %+v", g.Stats())
	}
	*now += 59_000
	sweepAll(g)
	if g.apply(throttled); g.Throttled("k") {
		t.Error("a late copy throttles where the release had been forgotten too early")
	}
	g.apply(message(t, "api", "k", api.StateThrottled, t0+2000, t0+90_000, false))
	if !g.Throttled("k") {
		t.Error("a newer decision does not throttle")
	}
	// An ended decision is not remembered forever.
	g.apply(message(t, "api", "k", api.StateReleased, t0+3000, 0, false))
	*now += 61_000
	sweepAll(g)
	if s := g.Stats(); s.Held != 0 {
		t.Errorf("%+v, want nothing held", s)
	}
}

// After Redis's clock has stepped back, a newer decision can have an older time.
func TestVersionsOrderDecisions(t *testing.T) {
	g, _ := deaf(t, Config{})
	for version, m := range []api.Transition{
		{State: api.StateThrottled, AtMs: t0, ExpiresMs: t0 + 60_000}, {State: api.StateReleased, AtMs: t0 - 3000},
		{State: api.StateThrottled, AtMs: t0 - 5000, ExpiresMs: t0 + 60_000},
	} {
		m.Rule, m.Key, m.Level, m.Version = "api", "k", 100, t0+int64(version)
		data, err := json.Marshal(m)
		testkit.Must(t, err)
		g.apply(data)
		if want := m.State == api.StateThrottled; g.Throttled("k") != want {
			t.Errorf("after %s: throttled %t, want %t", m.State, !want, want)
		}
	}
}

func TestRuleThatTurnsShadowLetsGo(t *testing.T) {
	g, _ := deaf(t, Config{})
	g.apply(message(t, "api", "k", api.StateThrottled, t0, t0+60_000, false))
	g.apply(message(t, "api", "k", api.StateThrottled, t0+10, t0+60_000, true))
	if g.Throttled("k") {
		t.Error("a shadow decision throttles")
	}
}

func TestMaxKeysBoundsWhatIsHeld(t *testing.T) {
	g, now := deaf(t, Config{MaxKeys: 3})
	for i := range 5 {
		g.apply(message(t, "api", fmt.Sprint(i), api.StateThrottled, t0, t0+1000, false))
	}
	if s := g.Stats(); s.Held != 3 || s.Throttled != 3 || s.Refused != 2 || g.Throttled("4") {
		t.Errorf("%+v, want 3 held and 2 refused", s)
	}
	g.apply(message(t, "api", "0", api.StateThrottled, t0+10, t0+5000, false))
	if *now += 2000; !g.Throttled("0") {
		t.Error("a key that is held is not renewed")
	}
	sweepAll(g)
	if g.apply(message(t, "api", "4", api.StateThrottled, t0+2000, t0+9000, false)); !g.Throttled("4") {
		t.Error("there is room again, and the key is not held")
	}
}

func TestWhatIsNoDecisionIsCounted(t *testing.T) {
	g, _ := deaf(t, Config{})
	for _, text := range []string{"", "{", `{"rule":"api","key":"k","state":"raised"}`,
		`{"rule":"","key":"k","state":"throttled"}`, `{"rule":"api","key":"","state":"throttled"}`} {
		g.apply([]byte(text))
	}
	if s := g.Stats(); s.Malformed != 5 || s.Held != 0 {
		t.Errorf("%+v, want 5 malformed and nothing held", s)
	}
}

// Any order of messages, copies, snapshots and times, against a naive account
// of the three rules that every subscriber keeps.
func TestGuardAgainstANaiveSubscriber(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g, now := deaf(t, Config{})
		last := map[[2]string]api.Transition{} // what a subscriber that never forgets would know
		in := map[[2]string]bool{}             // in this snapshot, or after it
		stands := map[string]int64{"a": int64(rapid.IntRange(1, 6000).Draw(rt, "a")), "b": 3000}
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0:
				*now += int64(rapid.IntRange(1, 3000).Draw(rt, "ms"))
			case 1:
				sweepAll(g)
			case 2: // the connection was lost: a new snapshot begins
				g.take(subscription.Delivery{Begin: true})
				clear(in)
			case 3:
				if g.take(subscription.Delivery{Whole: true}); true {
					for k := range last {
						if !in[k] && last[k].State == api.StateThrottled {
							delete(last, k)
						}
					}
				}
			default:
				k := [2]string{rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "rule"),
					rapid.SampledFrom([]string{"x", "y", "z"}).Draw(rt, "key")}
				m := api.Transition{Rule: k[0], Key: k[1], State: api.StateThrottled,
					AtMs: *now - int64(rapid.IntRange(0, 2000).Draw(rt, "age"))}
				m.Version = m.AtMs
				m.ExpiresMs = m.AtMs + stands[k[0]]
				if rapid.Bool().Draw(rt, "released") {
					m.State, m.ExpiresMs = api.StateReleased, m.AtMs
				}
				if old, ok := last[k]; !ok || m.Version >= old.Version {
					last[k] = m
				}
				in[k] = true
				data, _ := json.Marshal(m)
				g.apply(data)
			}
			for _, key := range []string{"x", "y", "z"} {
				want := false
				for _, rule := range []string{"a", "b"} {
					d := last[[2]string{rule, key}]
					want = want || d.State == api.StateThrottled && *now < d.ExpiresMs
				}
				if got := g.Throttled(key); got != want {
					rt.Fatalf("%s at %d: throttled %t, want %t; knows %+v", key, *now-t0, got, want, last)
				}
				if _, got := g.Lookup(key); got != want {
					rt.Fatalf("%s: Lookup %t, want %t", key, got, want)
				}
			}
		}
	})
}
