package httpapi_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// margin is what an answer may take beyond the deadline on a machine that is
// busy. Without a deadline it would take the client's 5 s.
const margin = 2 * time.Second

func onError(name string, o windows.OnError) *windows.Rule {
	return rule(name, func(r *windows.Rule) { r.OnError = o }, windows.Window{Limit: 2, Per: time.Hour})
}

var outageRules = []*windows.Rule{
	onError("allow", windows.OnErrorAllow), onError("deny", windows.OnErrorDeny),
	onError("local", windows.OnErrorLocal),
	rule("shadow", func(r *windows.Rule) { r.OnError, r.Shadow = windows.OnErrorDeny, true },
		windows.Window{Limit: 2, Per: time.Hour}),
}

// inTime runs one request and fails if its answer comes too late.
func inTime(t *testing.T, what string, ask func() answer) answer {
	t.Helper()
	start := time.Now()
	a := ask()
	if took := time.Since(start); took > timeout+margin {
		t.Errorf("%s took %s, want at most %s", what, took, timeout)
	}
	return a
}

// Redis is stopped, or freezes and leaves connections open: each rule's
// on_error answers within the deadline, and Redis again when it is back.
func TestOutage(t *testing.T) {
	for _, outage := range []struct {
		name       string
		begin, end func(*streamtest.RedisProcess)
	}{
		{"stopped", (*streamtest.RedisProcess).Stop, (*streamtest.RedisProcess).Start},
		{"frozen", (*streamtest.RedisProcess).Pause, (*streamtest.RedisProcess).Resume},
	} {
		t.Run(outage.name, func(t *testing.T) {
			t.Parallel()
			server := streamtest.OwnRedis(t)
			w := newWorldWithin(t, timeout, streamtest.Connect(t, server.Addr()), outageRules...)
			wantStatus(t, w.get(t, "allow:1"), 200)
			wantStatus(t, w.do(t, "POST", "/v1/events", `[{"key":"ip:1"}]`), 202)
			outage.begin(server)
			for i := range 4 { // of a limit of 2
				a := inTime(t, "allow", func() answer { return w.get(t, "allow:1") })
				wantStatus(t, a, 200)
				if a.str("source") != "policy" || a.str("note") == "" || a.header.Get("RateLimit") != "" {
					t.Errorf("on_error allow: %s with RateLimit %q, want it of the policy, with a note", a.text,
						a.header.Get("RateLimit"))
				}

				a = inTime(t, "deny", func() answer { return w.get(t, "deny:1") })
				wantProblem(t, a, 503, "unavailable", "")

				a = inTime(t, "local", func() answer { return w.get(t, "local:1") })
				if i < 2 {
					wantStatus(t, a, 200)
				} else {
					wantProblem(t, a, 429, "over-limit", "local:1")
				}
				if a.str("source") != "local" {
					t.Errorf("on_error local: %s, want it from the local count", a.text)
				}

				a = inTime(t, "shadow", func() answer { return w.get(t, "shadow:1") })
				wantStatus(t, a, 200)
			}
			wantStatus(t, w.get(t, "ip:1"), 200) // no rule: nobody asks Redis
			inTime(t, "cost above the limit", func() answer {
				a := w.get(t, "deny:1", "cost=3")
				wantProblem(t, a, 400, "cost-exceeds-limit", "")
				return a
			})
			wantProblem(t, inTime(t, "GET", func() answer { return w.do(t, "GET", "/v1/keys/allow:1", "") }),
				503, "unavailable", "")
			strictest(t, w)
			frozen := outage.name == "frozen"
			if eventsAway(t, w) != frozen && frozen {
				t.Error("an event that was sent is said to be refused")
			}
			operatorsAway(t, w, map[bool]string{false: "unavailable", true: "outcome-unknown"}[frozen])
			outage.end(server)
			streamtest.Eventually(t, 20*time.Second, "events are taken again", func() (bool, string) {
				a := w.do(t, "POST", "/v1/events", `[{"key":"ip:3"}]`)
				return a.status == 202, a.text
			})
			streamtest.Eventually(t, 20*time.Second, "Redis answers again", func() (bool, string) {
				a := w.get(t, "deny:2")
				return a.status != 503 && a.str("source") == "redis", a.text
			})
		})
	}
}

// strictest: if rules differ, the strictest decides for all: deny, then local, then allow. A shadow rule does not
// count.
func strictest(t *testing.T, w *world) {
	t.Helper()
	for _, c := range []struct {
		keys   [2]string
		status int
		source string
	}{
		{[2]string{"allow:1", "deny:1"}, 503, ""},
		{[2]string{"deny:1", "local:2"}, 503, ""},
		{[2]string{"local:2", "allow:1"}, 200, "local"},
		{[2]string{"shadow:1", "allow:1"}, 200, "policy"},
		{[2]string{"shadow:1", "local:2"}, 200, "local"},
	} {
		a := w.post(t, fmt.Sprintf(`{"checks":[{"key":%q},{"key":%q}]}`, c.keys[0], c.keys[1]))
		wantStatus(t, a, c.status)
		if c.status == 200 && nth(t, a, 0)["source"] != c.source {
			t.Errorf("%v: %s, want it from %s", c.keys, a.text, c.source)
		}
	}
}

// eventsAway sends an event while Redis does not answer. It reports whether the answer says that
// the outcome is unknown: Redis may have stored the event.
func eventsAway(t *testing.T, w *world) (unknown bool) {
	t.Helper()
	a := inTime(t, "events", func() answer { return w.do(t, "POST", "/v1/events", `[{"key":"ip:2"}]`) })
	counts, _ := a.body["events"].(map[string]any)
	unknown = counts["unknown"] == 1.0
	if a.status != 503 || counts["accepted"] != 0.0 || unknown != (counts["refused"] != 1.0) ||
		unknown != (a.str("type") == "urn:streamcounter:outcome-unknown") {
		t.Errorf("%d %s, want an event that is refused or unknown, and said to be", a.status, a.text)
	}
	return unknown
}

// operatorsAway changes overrides and resets a key while Redis does not answer. Redis may execute a request later, if
// it was sent.
func operatorsAway(t *testing.T, w *world, problem string) {
	t.Helper()
	for _, c := range [][3]string{{"PUT", "/v1/overrides/allow:1", `{"block":true}`},
		{"DELETE", "/v1/overrides/allow:1", ""}, {"DELETE", "/v1/keys/allow:1", ""}} {
		wantProblem(t, inTime(t, c[0]+" "+c[1], func() answer { return w.do(t, c[0], c[1], c[2]) }), 503, problem, "")
	}
}

// Redis refuses a write as a whole where its memory is full: the answer says so, and nothing is unknown.
func TestFullMemory(t *testing.T) {
	own := streamtest.OwnRedis(t)
	c := streamtest.Connect(t, own.Addr())
	w := newWorld(t, c, rule("deny", func(r *windows.Rule) { r.OnError = windows.OnErrorDeny },
		windows.Window{Limit: 5, Per: time.Minute}), rule("allow", nil, windows.Window{Limit: 5, Per: time.Minute}))
	w.post(t, `{"key":"deny:1"}`) // the library is there
	testkit.Must(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
	wantProblem(t, w.do(t, "POST", "/v1/reservations", `{"key":"deny:1"}`), 503, "unavailable", "OOM")
	wantProblem(t, w.post(t, `{"key":"deny:1"}`), 503, "unavailable", "OOM")
	const note = "Redis answers OOM and rule allow has on_error: allow"
	if got := w.post(t, `{"key":"allow:1"}`).str("note"); got != note {
		t.Errorf("the note of a check that on_error decided: %q", got)
	}
	testkit.Must(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	if n := w.used(t, "deny:1"); n != 1 {
		t.Errorf("used %d, want the first check alone", n)
	}
}
