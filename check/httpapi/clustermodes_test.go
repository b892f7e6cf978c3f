package httpapi_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// Calls over several partitions of a Cluster: looks, charges, denied ones that count, and calls
// that are sent again.
func TestModesOverPartitionsOfACluster(t *testing.T) {
	c := streamtest.Cluster(t)
	client := stream.NewCluster(&redis.ClusterOptions{Addrs: c.Addrs()[:3], ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	tokens := rule("tokens", func(r *windows.Rule) { r.OnDeny = windows.OnDenyCharge },
		windows.Window{Limit: 100, Per: time.Hour})
	w := newWorld(t, client, rule("user", nil, windows.Window{Limit: 10, Per: time.Hour}), tokens)
	if w.keys.Partition("user:1") == w.keys.Partition("user:2") {
		t.Fatal("the keys share a partition")
	}
	used := func(want map[string]int64) {
		t.Helper()
		for key, want := range want {
			if n := w.used(t, key); n != want {
				t.Errorf("%s: used %d, want %d", key, n, want)
			}
		}
	}
	const both = `{"checks":[{"key":"user:1","cost":6},{"key":"user:2","cost":2}]}`
	for i := range 3 {
		a := w.post(t, both, "Idempotency-Key: a")
		wantStatus(t, a, 200)
		if replayed := a.body["replayed"] == true; replayed != (i > 0) {
			t.Errorf("%d: %s", i, a.text)
		}
	}
	wantProblem(t, w.post(t, `{"checks":[{"key":"user:1","cost":6},{"key":"user:2","cost":3}]}`, "Idempotency-Key: a"),
		422, "idempotency-key-reused", "another body")
	used(map[string]int64{"user:1": 6, "user:2": 2})

	wantStatus(t, w.post(t, `{"mode":"look","checks":[{"key":"user:1","cost":4},{"key":"user:2","cost":8}]}`), 200)
	wantStatus(t, w.post(t, `{"mode":"look","checks":[{"key":"user:1","cost":5},{"key":"user:2"}]}`), 429)
	for range 2 {
		a := w.post(t, `{"mode":"charge","checks":[{"key":"user:1","cost":50},{"key":"user:2"}]}`, "Idempotency-Key: b")
		wantStatus(t, a, 200)
		if nth(t, a, 0)["charged"] != true || nth(t, a, 1)["allowed"] != true || a.body["allowed"] != false {
			t.Errorf("charges: %s", a.text)
		}
	}
	used(map[string]int64{"user:1": 56, "user:2": 3})

	for range 2 {
		a := w.post(t, `{"checks":[{"key":"tokens:1","cost":30},{"key":"user:1"},{"key":"tokens:2","cost":101},
			{"key":"user:2"}]}`, "Idempotency-Key: c")
		wantStatus(t, a, 429)
		for i, want := range []any{true, nil, true, nil} {
			if nth(t, a, i)["charged"] != want {
				t.Errorf("check %d: %s", i, a.text)
			}
		}
		if nth(t, a, 2)["retry_after_ms"] != -1.0 || nth(t, a, 0)["retry_after_ms"] != 0.0 {
			t.Errorf("waits: %s", a.text)
		}
	}
	used(map[string]int64{"tokens:1": 30, "tokens:2": 101, "user:1": 56, "user:2": 3})
}
