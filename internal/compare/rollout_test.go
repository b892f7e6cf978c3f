package compare

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
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
	}
	if len(got.Rules) != len(wants) || got.Unmatched != 1 || got.Trace.Requests != 15 {
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
	testkit.Must(t, got.WriteTable(&out))
	for _, line := range []string{"No rule matches the keys of 1 request.",
		"Rule strict (shadow) would have denied 4 of 10 requests, and throttled 2 of 2 keys.",
		"Not counted: windows in flight", "Not counted: penalty", "Rule unused matches no request."} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("it does not say %q:\n%s", line, out.String())
		}
	}
}
