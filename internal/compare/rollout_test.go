package compare

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// The rollout shows who would have been denied and throttled, when and for how long, by each rule as if only it were
// enforced.
func TestRollOut(t *testing.T) {
	rules, err := windows.Parse("rules.yml", []byte(`
rules:
  - {name: user, match: "user:*", windows: [{limit: 3, per: 10s}], penalty: [1m]}
  - {name: strict, match: "user:*", windows: [{limit: 2, per: 10s}], shadow: true}
  - {name: paid, match: "late:*", on_deny: charge, windows: [{limit: 1, per: 10s}]}
  - {name: job, match: "job:*", windows: [{limit: 1, in_flight: 30s}]}
  - {name: unused, match: "other:*", windows: [{limit: 1, per: 10s}]}
  - {name: clock, match: "clock:*", windows: [{limit: 2, per: 10s}, {limit: 9, per: 1d}], algorithm: fixed-window}
`))
	testkit.Must(t, err)
	trace := Trace{Name: "log x"}
	add := func(key string, seconds ...int64) {
		for _, s := range seconds {
			trace.Requests = append(trace.Requests, Request{Ms: start + 1000*s, Key: key, Cost: 1})
		}
	}
	add("user:1", 0, 1, 2, 3, 4, 30, 31, 32)
	add("user:2", 0, 5)
	add("late:1", 0, 5)
	add("job:1", 0, 0)
	add("nobody", 9)
	add("clock:1", 9)
	trace.sort()
	got, err := RollOut(context.Background(), rules, trace)
	testkit.Must(t, err)

	type want struct {
		denied int64
		times  map[string][]Span // in seconds
	}
	wants := map[string]want{
		// The limit is used up at 2 s, with room again when the first request leaves at 10 s.
		"user": {2, map[string][]Span{"user:1": {{2, 10}, {32, 40}}}},
		// The limit is used up at 1 s. Denied requests do not count: at 30 s the window is empty.
		"strict": {4, map[string][]Span{"user:1": {{1, 10}, {31, 40}}, "user:2": {{5, 10}}}},
		"paid":   {1, map[string][]Span{"late:1": {{0, 15}}}}, // denied requests count
		"job":    {},
		"unused": {},
		"clock":  {},
	}
	if len(got.Rules) != len(wants) || got.Unmatched != 1 || got.Trace.Requests != 16 {
		t.Errorf("%+v", got)
	}
	for _, r := range got.Rules {
		w := wants[r.Rule]
		if r.Denied != w.denied || len(r.Throttled) != len(w.times) {
			t.Errorf("%s denied %d and throttled %+v", r.Rule, r.Denied, r.Throttled)
		}
		for _, k := range r.Throttled {
			for i, s := range k.Times {
				if s := (Span{(s.FromMs - start) / 1000, (s.ToMs - start) / 1000}); s != w.times[k.Key][i] {
					t.Errorf("%s throttled %s %+v", r.Rule, k.Key, s)
				}
			}
		}
	}
	var out bytes.Buffer
	testkit.Must(t, got.WriteText(&out))
	for _, line := range []string{"No rule matches the keys of 1 request.",
		"Rule strict (shadow) would have denied 4 of 10 requests, and throttled 2 of 2 keys.",
		"Not counted: windows in flight", "Not counted: penalty",
		"Not counted: by fixed-window, but exactly in windows that slide.", "Rule unused matches no request."} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("it does not say %q:\n%s", line, out.String())
		}
	}
}

// valuesTrace returns a trace whose requests have users and addresses; some requests have no user.
func valuesTrace(n int) Trace {
	draw, ms := rand.New(rand.NewPCG(7, 0)), int64(start)
	t := Trace{Name: "values"}
	for range n {
		ms += draw.Int64N(400)
		r := Request{Ms: ms, Key: fmt.Sprintf("k:%d", draw.IntN(2)), Cost: 1,
			Values: map[string]string{"ip": fmt.Sprint("10.0.0.", draw.IntN(8))}}
		if draw.IntN(20) > 0 {
			r.Values["user"] = string([]rune{[]rune("abcdeABCDE")[draw.IntN(10)]})
		}
		t.Requests = append(t.Requests, r)
	}
	return t
}

// The rollout counts values directly from their definition. The rule's own windows in Redis return the same verdict
// for each request of a trace, and throttle each key at the same times.
func TestValuesEqualThoseInRedis(t *testing.T) {
	trace := valuesTrace(600)
	for _, onDeny := range []windows.OnDeny{windows.OnDenySkip, windows.OnDenyCharge} {
		rules, err := windows.NewRules([]*windows.Rule{{Name: "values", Match: "*", OnDeny: onDeny,
			Windows: []windows.Window{
				{Limit: 3, Per: 2 * time.Second, Distinct: "user", Normalize: windows.Normalize{Lower: true}},
				{Limit: 4, Per: 5 * time.Second, Distinct: "user", Normalize: windows.Normalize{Lower: true}},
				{Limit: 5, Per: 4 * time.Second, Distinct: "ip"}, {Limit: 11, Per: 6 * time.Second}}}})
		testkit.Must(t, err)
		got, err := RollOut(t.Context(), rules, trace)
		testkit.Must(t, err)
		t.Run(string(onDeny), func(t *testing.T) {
			streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
				want := throttledInRedis(t, c, rules, trace)
				if len(got.Rules[0].Throttled) != 2 || len(want) != 2 {
					t.Fatalf("throttled %+v, in Redis %+v", got.Rules[0].Throttled, want)
				}
				for _, k := range got.Rules[0].Throttled {
					w := want[k.Key]
					if k.Denied != w.Denied || k.Denied < 30 || len(k.Times) < 10 {
						t.Errorf("%s: denied %d in %d times, in Redis %d", k.Key, k.Denied, len(k.Times), w.Denied)
					}
					if onDeny == windows.OnDenySkip && !slices.Equal(k.Times, w.Times) {
						t.Errorf("%s: throttled\n%v, in Redis\n%v", k.Key, k.Times, w.Times)
					}
				}
			})
		})
	}
}

func throttledInRedis(t *testing.T, c *redis.Client, rules *windows.Rules, trace Trace) map[string]*KeyRollout {
	t.Helper()
	keys, err := stream.NewKeys(streamtest.Prefix(t), 4)
	testkit.Must(t, err)
	now, counter := int64(0), counters.New(c, keys)
	counter.Now = func() int64 { return now }
	testkit.Must(t, counter.RecordRules(t.Context(), rules))
	plan, out := rules.PlanOf(rules.List()[0]), map[string]*KeyRollout{}
	for _, r := range trace.Requests {
		values, err := plan.Values(func(name string) string { return r.Values[name] })
		if err != nil {
			continue
		}
		now = r.Ms
		v, err := counter.Check(t.Context(), []counters.Request{{Plan: plan, Key: r.Key, Cost: 1, Values: values}})
		testkit.Must(t, err)
		key := out[r.Key]
		if key == nil {
			key = &KeyRollout{Key: r.Key}
			out[r.Key] = key
		}
		if !v.Allowed {
			key.Denied++
		}
		until := int64(0)
		for _, w := range v.Items[0].Windows {
			if w.Used >= w.Limit {
				until = max(until, r.Ms+w.NextFreeMs)
			}
		}
		key.throttled(r.Ms, until)
	}
	return out
}

// A rule reports which requests it cannot count, and counts nothing for a field that the trace does not have.
func TestRequestsWithoutValues(t *testing.T) {
	rules, err := windows.Parse("rules.yml", []byte(`
rules:
  - {name: users, match: "a", windows: [{limit: 1, per: 10s, distinct: user}]}
  - {name: cards, match: "*", shadow: true, windows: [{limit: 1, per: 10s, distinct: card}, {limit: 2, per: 9s}]}
`))
	testkit.Must(t, err)
	user := func(name string) map[string]string { return map[string]string{"user": name} }
	got, err := RollOut(t.Context(), rules, Trace{Name: "x", Requests: []Request{{start, "a", 1, user("x")},
		{start + 1, "a", 1, nil}, {start + 2, "a", 1, user("y")}, {start + 3, "a", 1, user("x")}}})
	testkit.Must(t, err)
	users, cards := got.Rules[0], got.Rules[1]
	if users.Requests != 4 || users.Denied != 1 ||
		!slices.Equal(users.NotCounted, []string{`1 request without a value of "user"`}) ||
		!slices.Equal(users.Throttled[0].Times, []Span{{start, start + 10_003}}) {
		t.Errorf("%+v", users)
	}
	if cards.Denied != 2 ||
		!slices.Equal(cards.NotCounted, []string{`different values of "card": no request has one`}) {
		t.Errorf("%+v", cards)
	}
}
