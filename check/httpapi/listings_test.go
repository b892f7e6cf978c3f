package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/activity"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/streamtest"
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
