package httpapi_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// appended returns the events in the log, as "key count", of all partitions in turn.
func (w *world) appended(t *testing.T) map[string]int {
	t.Helper()
	got := map[string]int{}
	for _, p := range w.keys.All() {
		entries, err := w.redis.XRange(t.Context(), w.keys.Events(p), "-", "+").Result()
		testkit.Must(t, err)
		for _, e := range entries {
			got[fmt.Sprint(e.Values["key"], " ", e.Values["count"])]++
		}
	}
	return got
}

// Redis refuses one partition: the answer says how many are in and how many are not.
func TestEventsRefusedInPart(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), tenAMinute)
	bad := w.keys.Partition("a")
	testkit.Must(t, w.redis.Set(t.Context(), w.keys.Events(bad), "no stream", 0).Err())
	if w.keys.Partition("user:42") == bad {
		t.Fatal("the keys of this test share a partition")
	}
	a := w.do(t, "POST", "/v1/events", `[{"key":"a"},{"key":"user:42"},{"key":""},{"key":"a","count":2}]`)
	wantProblem(t, a, 503, "unavailable", "Redis refuses it: WRONGTYPE")
	counts, _ := a.body["events"].(map[string]any)
	if counts["accepted"] != 1.0 || counts["refused"] != 2.0 || counts["unknown"] != nil ||
		len(counts["rejected"].([]any)) != 1 {
		t.Errorf("%s, want 1 accepted, 2 refused, 1 rejected", a.text)
	}
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
		events, _, rejected, more, err := httpapi.DecodeEvents([]byte(strings.Join(lines, "\n")))
		if err != nil {
			if !errors.Is(err, api.ErrBadRequest) || len(events)+len(rejected)+more > 0 {
				t.Fatalf("error %v with %d events and %d rejected", err, len(events), len(rejected))
			}
			return
		}
		if strings.HasPrefix(strings.TrimLeft(strings.Join(lines, "\n"), " \t\r\n"), "[") {
			return // an array
		}
		full := 0
		for _, l := range lines {
			if strings.TrimSpace(l) != "" {
				full++
			}
		}
		if len(events)+len(rejected)+more != full {
			t.Fatalf("%d events and %d rejected of %d lines", len(events), len(rejected), full)
		}
		for _, e := range events {
			if err := e.Validate(); err != nil {
				t.Fatalf("%+v: %v", e, err)
			}
		}
		for _, r := range rejected {
			if r.Line < 1 || r.Line > len(lines) || r.Error == "" {
				t.Fatalf("rejected %+v of %d lines", r, len(lines))
			}
		}
	})
}
