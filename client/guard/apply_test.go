package guard

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
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

// A block comes first, as in the answers of a server, even if a rule throttles the key for longer.
func TestLookupPrefersABlock(t *testing.T) {
	rules := []string{"api", api.OverrideRule, "web"}
	for first := range rules {
		g, _ := deaf(t, Config{})
		for i := range rules {
			at := (first + i) % len(rules)
			until := t0 + []int64{90_000, 60_000, 120_000}[at]
			g.apply(message(t, rules[at], "k", api.StateThrottled, t0, until))
		}
		if d, ok := g.Lookup("k"); !ok || !d.IsBlock() {
			t.Errorf("%s came first: %+v, %t", rules[first], d, ok)
		}
	}
}

func TestOlderVersionsAreIgnored(t *testing.T) {
	g, now := deaf(t, Config{})
	throttled := func() { g.apply(message(t, "api", "k", api.StateThrottled, t0, t0+60_000)) }
	throttled()
	g.apply(message(t, "api", "k", api.StateReleased, t0+1000, 0))
	*now += 59_000
	sweepAll(g)
	if throttled(); g.Throttled("k") || g.Stats().Old != 1 {
		t.Errorf("a late copy throttles where the release had been forgotten too early: %+v", g.Stats())
	}
	*now += 2000 // an ended decision is not remembered forever
	sweepAll(g)
	if s := g.Stats(); s.Held != 0 {
		t.Errorf("%+v, want nothing held", s)
	}
}

func TestMaxKeysBoundsWhatIsHeld(t *testing.T) {
	g, now := deaf(t, Config{MaxKeys: 3})
	for i := range 5 {
		g.apply(message(t, "api", fmt.Sprint(i), api.StateThrottled, t0, t0+1000))
	}
	if s := g.Stats(); s.Held != 3 || s.Throttled != 3 || s.Refused != 2 || g.Throttled("4") {
		t.Errorf("%+v, want 3 held and 2 refused", s)
	}
	g.apply(message(t, "api", "0", api.StateThrottled, t0+10, t0+5000))
	if *now += 2000; !g.Throttled("0") {
		t.Error("a key that is held is not renewed")
	}
	sweepAll(g)
	if g.apply(message(t, "api", "4", api.StateThrottled, t0+2000, t0+9000)); !g.Throttled("4") {
		t.Error("there is room again, and the key is not held")
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

// Each way in which a key becomes free is a release, and a change with its reason. The channel holds one release until
// it is read.
func TestReleased(t *testing.T) {
	g, now := deaf(t, Config{OnChange: func(Change) {}})
	first, stopFirst := g.Released("k")
	second, stopSecond := g.Released("k")
	free := func(name string, want bool) {
		t.Helper()
		for _, c := range []<-chan struct{}{first, second} {
			got := false
			select {
			case <-c:
				got = true
			default:
			}
			if got != want {
				t.Errorf("%s: released %t, want %t", name, got, want)
			}
		}
	}
	g.apply(message(t, "api", "k", api.StateThrottled, t0, t0+60_000))
	g.apply(message(t, "api", "other", api.StateThrottled, t0, t0+60_000))
	g.apply(message(t, "api", "other", api.StateReleased, t0+1, 0))
	free("another key", false)
	g.apply(message(t, "api", "k", api.StateReleased, t0+1, 0))
	free("a release", true)
	free("read once", false)
	g.apply(message(t, "api", "k", api.StateThrottled, t0+2, t0+60_000))
	*now += 60_000
	sweepAll(g)
	free("its decision has expired", true)
	g.apply(message(t, "api", "k", api.StateThrottled, t0+3, t0+120_000))
	g.take(subscription.Delivery{Begin: true})
	g.take(subscription.Delivery{Whole: true})
	free("it is not in a snapshot", true)
	var reasons []Reason
	for len(g.changes) > 0 {
		if c := <-g.changes; c.Key == "k" && c.State == api.StateReleased {
			reasons = append(reasons, c.Reason)
		}
	}
	if want := []Reason{Decided, Expired, Missing}; !slices.Equal(reasons, want) {
		t.Errorf("reasons %v, want %v", reasons, want)
	}
	stopFirst()
	stopSecond()
	if len(g.waiting.keys) != 0 {
		t.Errorf("nobody waits, and it has %v", g.waiting.keys)
	}
}

// OnChange reports changes of keys. It does not report the end of one rule's throttle while another rule throttles the
// key. It reports the release of a decision that has expired, even if a message comes before the sweep.
func TestChangesOfAKey(t *testing.T) {
	const throttled, released = api.StateThrottled, api.StateReleased
	g, now := deaf(t, Config{OnChange: func(Change) {}})
	apply := func(rule string, state api.State, lasts int64) {
		g.apply(message(t, rule, "k", state, *now, *now+lasts))
	}
	for _, s := range []struct {
		name string
		do   func()
		want []string
	}{
		{"a rule", func() { apply("api", throttled, 60_000) }, []string{"throttled decided"}},
		{"another rule", func() { apply("web", throttled, 120_000) }, nil},
		{"a block", func() { apply(api.OverrideRule, throttled, 90_000) }, nil},
		{"the end of the rule", func() { apply("api", released, 0) }, nil},
		{"the end of the block", func() { apply(api.OverrideRule, released, 0) }, nil},
		{"the last expires", func() { *now += 120_000; sweepAll(g) }, []string{"released expired"}},
		{"expired when it comes", func() { apply("api", throttled, 0); sweepAll(g) }, nil},
		{"again", func() { apply("api", throttled, 60_000) }, []string{"throttled decided"}},
		{"renewed too late", func() { *now += 60_000; apply("api", throttled, 60_000) },
			[]string{"released expired", "throttled decided"}},
		{"released too late", func() { *now += 60_000; apply("api", released, 0); sweepAll(g) },
			[]string{"released expired"}},
	} {
		s.do()
		var got []string
		for len(g.changes) > 0 {
			c := <-g.changes
			got = append(got, fmt.Sprintf("%s %s", c.State, c.Reason))
		}
		if !slices.Equal(got, s.want) {
			t.Errorf("%s: %q, want %q", s.name, got, s.want)
		}
	}
}

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
