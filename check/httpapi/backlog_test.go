package httpapi_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// Events for a partition in which workers are too far behind are refused with a reason. Events for other partitions
// are taken.
func TestEventsAreRefusedWhileWorkersAreBehind(t *testing.T) {
	c := streamtest.AnyRedis(t)
	w := newWorld(t, c, rule("any", nil, windows.Window{Limit: 1, Per: time.Second}))
	log, err := stream.NewLog(c, w.keys, time.Minute)
	testkit.Must(t, err)
	behind := w.keys.Partition("user:42")
	var asked atomic.Int64
	var fails atomic.Bool
	list := map[int]eventlog.Backlog{behind: {Oldest: 30*time.Second + 1}}
	service := func(most time.Duration) *httpapi.Server {
		s, err := httpapi.NewServer(httpapi.Config{
			Checks: w.service, Log: log, Metrics: httpapi.NewMetrics(prometheus.NewRegistry()),
			MaxBacklog: most, Keys: w.keys, Backlogs: func(context.Context) (map[int]eventlog.Backlog, error) {
				asked.Add(1)
				if fails.Load() {
					return nil, errors.New("no answer")
				}
				return list, nil
			},
		})
		testkit.Must(t, err)
		return s
	}
	w.handler = service(30 * time.Second).Handler(nil)
	for range 3 {
		a := w.do(t, "POST", "/v1/events", `[{"key":"user:1"},{"key":"user:42"}]`)
		wantProblem(t, a, 503, "backlog", "30s old")
		if a.header.Get("Retry-After") != "5" {
			t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
		}
	}
	if n := len(w.appended(t)); n != 0 {
		t.Errorf("%d events were taken nevertheless", n)
	}
	wantStatus(t, w.do(t, "POST", "/v1/events", `{"key":"user:1"}`), 202)
	if n := asked.Load(); n == 4 {
		t.Error("it asked for each request")
	}

	w.handler = service(31 * time.Second).Handler(nil)
	wantStatus(t, w.do(t, "POST", "/v1/events", `{"key":"user:42"}`), 202)
	w.handler = service(0).Handler(nil)
	wantStatus(t, w.do(t, "POST", "/v1/events", `{"key":"user:42"}`), 202)
	fails.Store(true) // unknown is no reason to refuse
	w.handler = service(30 * time.Second).Handler(nil)
	wantStatus(t, w.do(t, "POST", "/v1/events", `{"key":"user:42"}`), 202)
}
