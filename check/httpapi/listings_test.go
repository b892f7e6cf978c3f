package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/activity"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// A few listings run at once, some more wait, and all others are refused with a time to come back. Checks go on.
func TestListingsAreBounded(t *testing.T) {
	began, goOn := make(chan struct{}, 100), make(chan struct{})
	w := newWorldWith(t, streamtest.AnyRedis(t), func(_ *check.Config, h *httpapi.Config) {
		h.Activity = func(context.Context) (activity.Activity, error) {
			began <- struct{}{}
			<-goOn
			return activity.Activity{}, nil
		}
	}, tenAMinute)
	answered := make(chan int, 100)
	for range httpapi.ListingsAtOnce + httpapi.ListingsQueued {
		go func() {
			rec := httptest.NewRecorder()
			w.handler.ServeHTTP(rec, httptest.NewRequest("GET", "/v1/top", nil))
			answered <- rec.Code
		}()
	}
	for range httpapi.ListingsAtOnce {
		<-began
	}
	streamtest.Eventually(t, "the queue is full", func() (bool, string) {
		n := w.server.Listings()
		return n == httpapi.ListingsAtOnce+httpapi.ListingsQueued, fmt.Sprint(n)
	})
	for _, path := range []string{"/v1/top", "/v1/throttled", "/v1/overrides", "/v1/history/user:1", "/v1/decisions",
		"/v1/decisions/stream?startup=true"} {
		a := w.do(t, "GET", path, "")
		wantProblem(t, a, 503, "unavailable", "4 listings run and 64 wait")
		if a.header.Get("Retry-After") != "2" {
			t.Errorf("%s: Retry-After %q", path, a.header.Get("Retry-After"))
		}
	}
	if _, err := w.server.OverviewInTurn(t.Context(), 1); err == nil {
		t.Error("the page lists out of turn")
	}
	if got := testutil.ToFloat64(w.metrics.Busy("listings")); got != 7 {
		t.Errorf("%v refusals are counted, want 7", got)
	}
	wantStatus(t, w.get(t, "user:1"), 200)
	wantStatus(t, w.do(t, "GET", "/v1/keys/user:1", ""), 200)
	if n := len(began); n > 0 {
		t.Errorf("%d more listings ran", n)
	}
	close(goOn)
	for range httpapi.ListingsAtOnce + httpapi.ListingsQueued {
		if code := <-answered; code != 200 {
			t.Errorf("one that waited: %d", code)
		}
	}
	wantStatus(t, w.do(t, "GET", "/v1/throttled", ""), 200)
}

// All bodies of a process share memory: bodies of events have one pool, and all other bodies another.
func TestBodiesShareMemory(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), tenAMinute)
	w.server.ShareMemory(100, 200)
	long := `"` + strings.Repeat("x", 150)
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/v1/events", `[{"key":"user:1"}]` + strings.Repeat(" ", 200), 503},
		{"POST", "/v1/events", `[{"key":"user:1"}]` + strings.Repeat(" ", 120), 202},
		{"POST", "/v1/check", long, 503},
		{"POST", "/v1/reservations", long, 503},
		{"PUT", "/v1/overrides/user:1", long, 503},
		{"POST", "/v1/check", `{"key":"user:1"}`, 200},
	} {
		a := w.do(t, c.method, c.path, c.body)
		wantStatus(t, a, c.status)
		if c.status == 503 && (a.header.Get("Retry-After") != "2" || a.str("type") != "urn:streamcounter:unavailable") {
			t.Errorf("%s: %v %s", c.path, a.header, a.text)
		}
	}
	if got := testutil.ToFloat64(w.metrics.Busy("memory")); got != 4 {
		t.Errorf("%v refusals are counted, want 4", got)
	}
	if bodies, events := w.server.Held(); bodies != 0 || events != 0 {
		t.Errorf("%d and %d bytes are still held", bodies, events)
	}
}

// The number of events that are decoded and appended at once is bounded: an event takes more memory than its line.
func TestAppendsAreBounded(t *testing.T) {
	began, goOn := make(chan struct{}, 9), make(chan struct{})
	w := newWorldWith(t, streamtest.AnyRedis(t), func(_ *check.Config, h *httpapi.Config) {
		h.AppendTimeout, h.MaxBacklog, h.BacklogTimeout = 50*time.Millisecond, time.Hour, patience
		h.Backlogs = func(context.Context) (map[int]eventlog.Backlog, error) {
			began <- struct{}{}
			<-goOn
			return nil, nil
		}
	}, tenAMinute)
	answered := make(chan int, 1)
	go func() {
		rec := httptest.NewRecorder()
		w.handler.ServeHTTP(rec, httptest.NewRequest("POST", "/v1/events", strings.NewReader(`[{"key":"user:1"}]`+
			strings.Repeat(" ", 2<<20))))
		answered <- rec.Code
	}()
	<-began
	a := w.do(t, "POST", "/v1/events", `[{"key":"user:1"}]`)
	wantProblem(t, a, 503, "unavailable", "too many requests are under way")
	close(goOn)
	if code := <-answered; code != http.StatusAccepted {
		t.Errorf("the first: %d", code)
	}
	wantStatus(t, w.do(t, "POST", "/v1/events", `[{"key":"user:1"}]`), 202)
	a = w.do(t, "POST", "/v1/events", "\x1f\x8b", "Content-Encoding: gzip")
	wantStatus(t, a, 415) // what is compressed is not taken for lines that are all bad
}

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
