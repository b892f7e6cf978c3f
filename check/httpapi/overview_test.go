package httpapi_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

func keysOf(list []api.Throttled) string {
	var out []string
	for _, t := range list {
		out = append(out, fmt.Sprintf("%s %s %d/%d", t.Key, t.Rule, t.Used, t.Limit))
	}
	return strings.Join(out, ", ")
}

// One call returns which keys are throttled, which are near a limit and what is reserved. The numbers of shadow rules
// are separate.
func TestOverview(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		alerts := func(r *windows.Rule) { r.Alerts = []int{50, 80} }
		w := newWorld(t, c, rule("user", alerts, windows.Window{Limit: 10, Per: time.Minute}),
			rule("job", nil, windows.Window{Limit: 3, Per: 30 * time.Second, InFlight: true}),
			rule("strict", func(r *windows.Rule) { alerts(r); r.Shadow, r.Match = true, "*user:*" },
				windows.Window{Limit: 7, Per: time.Minute}))
		for key, cost := range map[string]int{"user:full": 10, "user:near": 9, "user:half": 5, "user:low": 1} {
			wantStatus(t, w.get(t, key, fmt.Sprintf("cost=%d", cost)), 200)
		}
		wantStatus(t, put(t, w, "user:bad", `{"block":true,"reason":"abuse"}`), 200)
		wantStatus(t, w.get(t, "user:bad"), 429)
		for range 2 {
			wantStatus(t, w.reserve(t, `{"key":"job:1","cost":1,"ttl_ms":20000}`), 201)
		}
		wantStatus(t, w.reserve(t, `{"key":"user:low","cost":2,"ttl_ms":20000}`), 201)

		got, err := w.server.OverviewInTurn(t.Context(), 10)
		testkit.Must(t, err)
		if s := keysOf(got.Throttled); s != "user:full user 10/10, user:bad override 0/0" || got.Next != "" {
			t.Errorf("throttled are %s", s)
		}
		if got.ByRule["user"] != 1 || got.ByRule["strict"] != 2 || got.ByRule["override"] != 1 {
			t.Errorf("%v", got.ByRule)
		}
		if s := keysOf(got.Near); s != "user:near user 9/10, user:half strict 5/7, user:half user 5/10" ||
			got.NearEnforced != 2 || got.NearShadow != 1 {
			t.Errorf("near are %s: %d, %d", s, got.NearEnforced, got.NearShadow)
		}
		if len(got.Reserved) != 2 || got.ReservedKeys != 2 {
			t.Fatalf("%+v", got.Reserved)
		}
		slices.SortFunc(got.Reserved, func(a, b api.ReservedKey) int { return strings.Compare(a.Key, b.Key) })
		job, low := got.Reserved[0], got.Reserved[1]
		if job.Key != "job:1" || job.Rule != "job" || job.Units != 2 || job.Reservations != 2 || job.InFlight != 3 ||
			low.Units != 2 || low.Reservations != 1 || low.InFlight != 0 || low.FirstMs != w.clock.Load()+20_000 {
			t.Errorf("%+v", got.Reserved)
		}

		// Lists are bounded, their counts are not.
		got, err = w.server.OverviewInTurn(t.Context(), 1)
		testkit.Must(t, err)
		if keysOf(got.Throttled) != "user:full user 10/10" || got.Next == "" || len(got.Near) != 2 ||
			got.NearEnforced != 2 || len(got.Reserved) != 1 || got.ReservedKeys != 2 {
			t.Errorf("%+v", got)
		}

		for query, want := range map[string]int{"": 4, "?shadow=true": 2, "?shadow=false": 2, "?rule=user": 1,
			"?rule=strict&shadow=false": 0, "?rule=override": 1} {
			a := w.do(t, "GET", "/v1/throttled"+query, "")
			wantStatus(t, a, 200)
			if list := a.body["throttled"].([]any); len(list) != want {
				t.Errorf("%s: %s", query, a.text)
			}
		}
		wantProblem(t, w.do(t, "GET", "/v1/throttled?shadow=2", ""), 400, "bad-request", `shadow="2"`)
	})
}
