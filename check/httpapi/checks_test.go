package httpapi_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/windows"
)

// nth gives the answer to the nth check of several.
func nth(t *testing.T, a answer, i int) map[string]any {
	t.Helper()
	list, _ := a.body["checks"].([]any)
	if i >= len(list) {
		t.Fatalf("no check %d in %s", i, a.text)
	}
	return list[i].(map[string]any)
}

// Keys with one hash tag share a partition: all are charged in one step or none.
func TestChecksOfOnePartition(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		a := w.post(t, `{"checks":[{"key":"{t}user:1","cost":9},{"key":"{t}user:2"}]}`)
		wantStatus(t, a, 200)
		body := map[string]any{"allowed": true, "atomic": true, "retry_after_ms": 0.0, "checks": []any{
			map[string]any{"allowed": true, "rule": "user", "key": "{t}user:1", "cost": 9.0,
				"windows": []any{window(10, 60_000, 9, 60_000)}, "retry_after_ms": 0.0, "source": "redis"},
			map[string]any{"allowed": true, "rule": "user", "key": "{t}user:2", "cost": 1.0,
				"windows": []any{window(10, 60_000, 1, 60_000)}, "retry_after_ms": 0.0, "source": "redis"},
		}}
		if diff := cmp.Diff(body, a.body); diff != "" {
			t.Errorf("body (-want +got):\n%s", diff)
		}
		wantHeaders(t, a.header, map[string]string{
			"RateLimit-Policy":      `"user-1m";q=10;w=60, "user-1m";q=10;w=60`,
			"RateLimit":             `"user-1m";r=1;t=60, "user-1m";r=9;t=60`,
			"X-RateLimit-Remaining": "1", "Retry-After": "",
		})

		w.advance(time.Second)
		a = w.post(t, `{"checks":[{"key":"{t}user:2"},{"key":"{t}user:1","cost":2},{"key":"{t}user:3"}]}`)
		wantProblem(t, a, 429, "over-limit", "nothing was charged")
		if a.body["allowed"] != false || a.body["atomic"] != true || a.num("retry_after_ms") != 59_000 ||
			a.header.Get("Retry-After") != "59" {
			t.Errorf("denial %s, Retry-After %s; want to wait 59 s", a.text, a.header.Get("Retry-After"))
		}
		for i, wait := range []float64{0, 59_000, 0} {
			if c := nth(t, a, i); c["allowed"] != false || c["retry_after_ms"] != wait {
				t.Errorf("check %d: %v, want it denied, to wait %v ms", i, c, wait)
			}
		}
		for key, want := range map[string]int64{"{t}user:1": 9, "{t}user:2": 1, "{t}user:3": 0} {
			if n := w.used(t, key); n != want {
				t.Errorf("%s: %d used after a denial, want %d", key, n, want)
			}
		}
	}, tenAMinute)
}

func TestChecksOfSeveralPartitions(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		one, two := "user:1", "user:2"
		if w.keys.Partition(one) == w.keys.Partition(two) {
			t.Fatal("the keys of this test share a partition")
		}
		a := w.post(t, `{"checks":[{"key":"user:1","cost":9},{"key":"user:2","cost":2}]}`)
		wantStatus(t, a, 200)
		if a.body["allowed"] != true || a.body["atomic"] != true {
			t.Errorf("%s, want allowed and atomic: one server holds all partitions", a.text)
		}
		if got := nth(t, a, 1)["windows"]; !cmp.Equal(got, []any{window(10, 60_000, 2, 60_000)}) {
			t.Errorf("the second key's windows: %v", got)
		}
		a = w.post(t, `{"checks":[{"key":"user:2"},{"key":"user:1","cost":2}]}`)
		wantProblem(t, a, 429, "over-limit", "nothing was charged")
		if a.body["atomic"] != true || a.num("retry_after_ms") < 1 {
			t.Errorf("denial %s, want atomic and a wait", a.text)
		}
		if n, m := w.used(t, one), w.used(t, two); n != 9 || m != 2 {
			t.Errorf("%d and %d used after a denial, want 9 and 2", n, m)
		}
	}, tenAMinute)
}

// A key that stands twice is charged the sum, and judged by it.
func TestChecksWithAKeyTwice(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		a := w.post(t, `{"checks":[{"key":"user:1","cost":3},{"key":"user:1","cost":4}]}`)
		wantStatus(t, a, 200)
		for i, cost := range []float64{3, 4} {
			if c := nth(t, a, i); c["cost"] != cost || !cmp.Equal(c["windows"], []any{window(10, 60_000, 7, 60_000)}) {
				t.Errorf("check %d: %v, want cost %v and 7 used", i, c, cost)
			}
		}
		wantStatus(t, w.post(t, `{"checks":[{"key":"user:1","cost":2},{"key":"user:1","cost":2}]}`), 429)
		wantStatus(t, w.post(t, `{"checks":[{"key":"user:1","cost":2},{"key":"user:1"}]}`), 200)
		if n := w.used(t, "user:1"); n != 10 {
			t.Errorf("%d used, want 10", n)
		}
	}, tenAMinute)
}

func TestChecksWithoutARule(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		a := w.post(t, `{"checks":[{"key":"ip:1"},{"key":"user:1","cost":10},{"key":"ip:2"}]}`)
		wantStatus(t, a, 200)
		if a.body["atomic"] != true {
			t.Errorf("%s, want atomic: one key is counted", a.text)
		}
		for i, want := range []string{"policy", "redis", "policy"} {
			if c := nth(t, a, i); c["source"] != want || (c["note"] != nil) != (want == "policy") {
				t.Errorf("check %d: %v, want it from %s", i, c, want)
			}
		}
		wantStatus(t, w.post(t, `{"checks":[{"key":"ip:1"},{"key":"user:1"}]}`), 429)
		wantStatus(t, w.post(t, `{"checks":[{"key":"ip:1"}]}`), 200)
	}, tenAMinute)
}

// A shadow rule denies nobody, neither its own key nor one beside it.
func TestChecksWithAShadowRule(t *testing.T) {
	watched := rule("watched", func(r *windows.Rule) { r.Shadow = true }, windows.Window{Limit: 1, Per: time.Minute})
	onEveryRedis(t, func(t *testing.T, w *world) {
		// in one partition, in two
		for _, keys := range [][2]string{{"{t}watched:1", "{t}user:1"}, {"watched:2", "user:2"}} {
			for i := range 3 {
				a := w.post(t, fmt.Sprintf(`{"checks":[{"key":%q},{"key":%q}]}`, keys[0], keys[1]))
				wantStatus(t, a, 200)
				shadow := nth(t, a, 0)["shadow"].([]any)[0].(map[string]any)
				if got, want := shadow["allowed"] == true, i == 0; got != want {
					t.Errorf("%s, check %d: the shadow would allow: %t, want %t", keys[0], i+1, got, want)
				}
			}
		}
	}, watched, tenAMinute)
}

func TestThrottledList(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		a := w.do(t, "GET", "/v1/throttled", "")
		if diff := cmp.Diff(map[string]any{"throttled": []any{}, "truncated": false}, a.body); diff != "" {
			t.Errorf("nobody (-want +got):\n%s", diff)
		}
		wantStatus(t, w.get(t, "user:1", "cost=9"), 200)
		wantStatus(t, w.get(t, "user:2", "cost=10"), 200)
		w.advance(time.Second)
		wantStatus(t, w.get(t, "user:3", "cost=10"), 200)
		a = w.do(t, "GET", "/v1/throttled", "")
		now := float64(w.clock.Load())
		want := map[string]any{}
		for key, since := range map[string]float64{"user:2": now - 1000, "user:3": now} {
			want[key] = map[string]any{"key": key, "rule": "user", "limit": 10.0, "window_ms": 60_000.0, "used": 10.0,
				"since_ms": since, "until_ms": since + 60_000}
		}
		got := map[string]any{}
		for i, key := range throttledKeys(a) {
			got[key] = a.body["throttled"].([]any)[i]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("throttled (-want +got):\n%s", diff)
		}
	}, tenAMinute)
}
