package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// appended returns the events in the log of all partitions in turn, as "key count", or "key count (id)".
func (w *world) appended(t *testing.T) map[string]int {
	t.Helper()
	got := map[string]int{}
	for _, p := range w.keys.All() {
		entries, err := w.redis.XRange(t.Context(), w.keys.Events(p), "-", "+").Result()
		testkit.Must(t, err)
		for _, e := range entries {
			text := fmt.Sprint(e.Values["key"], " ", e.Values["count"])
			if id, ok := e.Values["id"]; ok {
				text += fmt.Sprintf(" (%s)", id)
			}
			got[text]++
		}
	}
	return got
}

// Each line of any input is a valid event, or is rejected under its number.
func TestDecodeEventsLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.OneOf(
			rapid.SampledFrom([]string{`{"key":"a"}`, `{"key":"b","count":7}`, `{"key":"a","count":"7"}`, `{`, `{}`,
				`[]`, `"`, `1e9`, "\xff", `{"key":"\u0000"}`, `{"key":"a","count":1e3}`}),
			rapid.StringMatching(`[^\n]{0,12}`),
		)
		lines := rapid.SliceOfN(line, 1, 12).Draw(t, "lines")
		text := strings.Join(lines, "\n")
		taken := decoded(t, []byte(text))
		if taken < 0 || strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "[") {
			return // it cannot be split, or is an array
		}
		full := 0
		for _, l := range lines {
			if strings.TrimSpace(l) != "" {
				full++
			}
		}
		if taken != full {
			t.Fatalf("%d events of %d lines were taken or rejected", taken, full)
		}
	})
}

// Events for a partition in which workers are too far behind are refused with a reason. Events for other partitions
// are taken.
func TestEventsAreRefusedWhileWorkersAreBehind(t *testing.T) {
	c := streamtest.AnyRedis(t)
	asked, fails := 0, false
	world := func(most time.Duration) *world {
		return newWorldWith(t, c, func(_ *check.Config, h *httpapi.Config) {
			h.MaxBacklog = most
			h.Backlogs = func(context.Context) (map[int]eventlog.Backlog, error) {
				asked++
				if fails {
					return nil, errors.New("no answer")
				}
				return map[int]eventlog.Backlog{h.Keys.Partition("user:42"): {Oldest: 30*time.Second + 1}}, nil
			}
		}, tenAMinute)
	}
	w := world(30 * time.Second)
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
	if asked == 4 {
		t.Error("it asked for each request")
	}

	for _, most := range []time.Duration{31 * time.Second, 0} {
		wantStatus(t, world(most).do(t, "POST", "/v1/events", `{"key":"user:42"}`), 202)
	}
	fails = true // unknown is no reason to refuse
	wantStatus(t, world(30*time.Second).do(t, "POST", "/v1/events", `{"key":"user:42"}`), 202)
}

// A body of bad lines names the first thousand, and one of too many is not read to its end.
func TestEventsAreBounded(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), tenAMinute)
	lines := func(n int) string { return strings.Repeat("-\n", n) }
	a := w.do(t, "POST", "/v1/events", lines(1500)+`{"key":"user:1"}`)
	if list, _ := a.body["rejected"].([]any); a.status != 202 || len(list) != 1000 || a.num("rejected_more") != 500 ||
		a.num("accepted") != 1 {
		t.Errorf("%d: %d named, %d more, %d accepted, want 1000, 500 and 1", a.status, len(list),
			a.num("rejected_more"), a.num("accepted"))
	}
	if a := w.do(t, "POST", "/v1/events", lines(100_000)); a.status != 202 || a.num("rejected_more") != 99_000 {
		t.Errorf("100,000 bad lines: %d, %d more", a.status, a.num("rejected_more"))
	}
	for name, body := range map[string]string{
		"lines": lines(100_001), "elements": "[" + strings.Repeat("7,", 100_000) + "7]",
		"elements with commas of their own": `[{"key":"a,]\",["},` + strings.Repeat("[1,2],", 100_000) + "7]",
	} {
		before := len(w.appended(t))
		t.Run(name, func(t *testing.T) {
			wantProblem(t, w.do(t, "POST", "/v1/events", body), 413, "body-too-large", "100000 events")
			if n := len(w.appended(t)); n != before {
				t.Errorf("%d events of a body that was refused", n-before)
			}
		})
	}
}
