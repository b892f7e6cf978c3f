package guard

import (
	"encoding/json"
	"log/slog"
	"maps"
	"testing"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
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

func message(t testing.TB, rule, key string, state api.State, at, expires int64) (subject string, data []byte) {
	t.Helper()
	return messageOf(t, api.Transition{Rule: rule, Key: key, State: state, Level: 100, WindowMs: 1000, Version: at,
		AtMs: at, UntilMs: expires, ExpiresMs: expires})
}

func messageOf(t testing.TB, d api.Transition) (subject string, data []byte) {
	t.Helper()
	data, err := json.Marshal(d)
	testkit.Must(t, err)
	return d.Subject("sc"), data
}

func sweepAll(g *Guard) {
	for range shards {
		g.sweep()
	}
}

func TestWhatIsNoDecisionIsCounted(t *testing.T) {
	g, _ := deaf(t, Config{})
	subject, data := message(t, "api", "k", api.StateThrottled, t0, t0+60_000)
	g.apply(subject, data[1:])
	g.apply(subject+"2", data)
	_, alert := message(t, "api", "k", api.StateRaised, t0, t0+60_000)
	g.apply(subject, alert)
	g.apply(message(t, "api", "k", api.StateThrottled, t0, 1<<62))
	if s := g.Stats(); s.Malformed != 4 || s.Held != 0 {
		t.Errorf("%+v, want 4 malformed and nothing held", s)
	}
}

var _ client.Releases = (*Guard)(nil)

// Any order of messages, copies, snapshots and times, against a naive account
// of the three rules that every subscriber keeps.
func TestGuardAgainstANaiveSubscriber(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g, now := deaf(t, Config{OnChange: func(Change) {}})
		told := map[string]api.State{}         // what OnChange has heard of a key
		last := map[[2]string]api.Transition{} // what a subscriber that never forgets would know
		in := map[[2]string]bool{}             // in this snapshot, or after it
		stands := map[string]int64{"a": int64(rapid.IntRange(1, 6000).Draw(rt, "a")), "b": 3000}
		for step := range rapid.Int64Range(1, 80).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0:
				*now += int64(rapid.IntRange(1, 3000).Draw(rt, "ms"))
			case 1:
				sweepAll(g)
			case 2: // the connection was lost: a new snapshot begins
				g.take(subscription.Delivery{Begin: true})
				clear(in)
			case 3:
				g.take(subscription.Delivery{Whole: true})
				maps.DeleteFunc(last, func(k [2]string, t api.Transition) bool {
					return !in[k] && t.State == api.StateThrottled && !t.Shadow
				})
			default:
				k := [2]string{rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "rule"),
					rapid.SampledFrom([]string{"x", "y", "z"}).Draw(rt, "key")}
				// After Redis's clock has stepped back, a newer decision can have an older time.
				m := api.Transition{Rule: k[0], Key: k[1], State: api.StateThrottled, Level: 100, WindowMs: 1000,
					Version: 3 + step - rapid.Int64Range(0, 2).Draw(rt, "late"),
					AtMs:    *now - int64(rapid.IntRange(0, 2000).Draw(rt, "age"))}
				m.ExpiresMs = m.AtMs + stands[k[0]]
				if rapid.Bool().Draw(rt, "released") {
					m.State, m.ExpiresMs = api.StateReleased, m.AtMs
				}
				m.Shadow = rapid.IntRange(0, 9).Draw(rt, "shadow") == 0
				if old, ok := last[k]; !ok || m.Version >= old.Version {
					last[k] = m
				}
				in[k] = true
				g.apply(messageOf(t, m))
			}
			for len(g.changes) > 0 {
				c := <-g.changes
				if told[c.Key] == c.State || told[c.Key] == "" && c.State == api.StateReleased {
					rt.Fatalf("%s is %s twice", c.Key, c.State)
				}
				told[c.Key] = c.State
			}
			for _, key := range []string{"x", "y", "z"} {
				want := false
				for _, rule := range []string{"a", "b"} {
					d := last[[2]string{rule, key}]
					want = want || d.State == api.StateThrottled && !d.Shadow && *now < d.ExpiresMs
				}
				if got := g.Throttled(key); got != want {
					rt.Fatalf("%s at %d: throttled %t, want %t; knows %+v", key, *now-t0, got, want, last)
				}
				if _, got := g.Lookup(key); got != want {
					rt.Fatalf("%s: Lookup %t, want %t", key, got, want)
				}
				if want && told[key] != api.StateThrottled {
					rt.Fatalf("%s is throttled, and OnChange has heard %q", key, told[key])
				}
			}
		}
	})
}
