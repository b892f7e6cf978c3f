package httpapi_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// One Cluster serves all of these tests; each has its own keys.
func TestOnACluster(t *testing.T) {
	t.Parallel()
	c := streamtest.Cluster(t)
	client := stream.NewCluster(&redis.ClusterOptions{Addrs: c.Addrs()[:3], ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	for name, test := range map[string]func(*testing.T, *redis.ClusterClient){
		"each": eachOnACluster, "all or nothing": allOrNothing, "modes": modesOverPartitions,
		"reservations": reservationsOnACluster,
	} {
		t.Run(name, func(t *testing.T) { test(t, client) })
	}
	t.Run("a partition that moves", func(t *testing.T) { aMovingPartition(t, c, client) })
}

// While the slot of one partition moves, checks of its keys follow on_error, at once when the breaker has seen enough
// of them. Checks of other partitions are answered.
func aMovingPartition(t *testing.T, c *streamtest.RedisCluster, client *redis.ClusterClient) {
	w := newWorld(t, client, rule("user", nil, windows.Window{Limit: 1000, Per: time.Hour}))
	check := func(keys ...string) (api.Source, time.Duration) {
		t.Helper()
		began := time.Now()
		all, err := w.service.CheckAll(t.Context(), asksOf(keys...))
		testkit.Must(t, err)
		return all.Checks[0].Source, time.Since(began)
	}
	moving, still := "user:1", "user:2"
	if w.keys.Partition(moving) == w.keys.Partition(still) {
		t.Fatal("the keys share a partition")
	}
	answered := func(when string) {
		t.Helper()
		streamtest.Eventually(t, 10*time.Second, "Redis answers for both keys "+when, func() (bool, string) {
			a, _ := check(moving)
			b, _ := check(still)
			return a == api.SourceRedis && b == api.SourceRedis, fmt.Sprint(a, b)
		})
	}
	answered("at first")
	slot := c.Slot(w.keys.Levels(w.keys.Partition(moving)))
	moved := false
	c.Migrate(slot, c.OtherMaster(slot), func(n int) {
		if n > 0 {
			return
		}
		moved = true
		for range 5 { // of two keys: one alone is found on either server
			if source, _ := check(moving, "user:beside{"+moving+"}"); source != api.SourcePolicy {
				t.Errorf("a check of a slot that moves was answered by %q", source)
			}
		}
		source, took := check(moving, still)
		if source != api.SourcePolicy || took > timeout/2 {
			t.Errorf("a check that needs the moving slot was answered by %q after %v, want on_error at once", source,
				took)
		}
		if source, _ := check(still); source != api.SourceRedis {
			t.Errorf("a check of another slot was answered by %q", source)
		}
	})
	if !moved {
		t.Error("nothing was tested")
	}
	answered("after the move")
}

func asksOf(keys ...string) (asks []api.CheckRequest) {
	for _, k := range keys {
		asks = append(asks, api.CheckRequest{Key: k})
	}
	return asks
}

// Checks that are decided independently go to their partitions in parallel, and each gets its own answer.
func eachOnACluster(t *testing.T, client *redis.ClusterClient) {
	w := newWorld(t, client, rule("user", nil, windows.Window{Limit: 1000, Per: time.Hour}))
	var asks []api.CheckRequest
	for i := range int64(20) {
		asks = append(asks, api.CheckRequest{Key: fmt.Sprintf("user:%d", i), Cost: i + 1})
	}
	for i, e := range w.service.CheckEach(t.Context(), asks) {
		testkit.Must(t, e.Err)
		if a := e.CheckAnswer; a.Key != asks[i].Key || a.Source != api.SourceRedis ||
			a.Windows[0].Used != asks[i].Cost {
			t.Errorf("%s: %+v, want %d used", asks[i].Key, a, asks[i].Cost)
		}
	}
}

// Keys of one partition are charged in one step, those of several shard by shard; in both
// cases all or none of them.
func allOrNothing(t *testing.T, client *redis.ClusterClient) {
	w := newWorld(t, client, rule("user", nil, windows.Window{Limit: 3, Per: time.Hour}))
	ask := func(keys []string) api.ChecksAnswer {
		t.Helper()
		all, err := w.service.CheckAll(t.Context(), asksOf(keys...))
		testkit.Must(t, err)
		return all
	}
	together := []string{"user:a{x}", "user:b{x}"}
	apart := []string{"user:1", "user:2", "user:3", "user:4", "user:5", "user:6"}
	for n := range 5 {
		if all := ask(together); all.Allowed != (n < 3) || !all.Atomic {
			t.Errorf("check %d of keys in one partition: allowed %v, atomic %v", n, all.Allowed, all.Atomic)
		}
		if all := ask(apart); all.Allowed != (n < 3) || all.Atomic {
			t.Errorf("check %d of keys in several partitions: allowed %v, atomic %v", n, all.Allowed, all.Atomic)
		}
	}
	for _, key := range append(together, apart...) {
		if st, err := w.service.Peek(t.Context(), key); err != nil || st.Windows[0].Used != 3 {
			t.Errorf("%s has used %+v, %v; want 3", key, st.Windows, err)
		}
	}
}

// If one partition denies a reservation, the units in the other partitions are given back, as if they had never been
// reserved. One id settles all parts of a reservation.
func reservationsOnACluster(t *testing.T, client *redis.ClusterClient) {
	w := newWorld(t, client, rule("user", nil, windows.Window{Limit: 3, Per: time.Hour},
		windows.Window{Limit: 2, Per: time.Minute, InFlight: true}))
	one, all := `{"key":"user:6"}`, `{"checks":[`
	for i := range 6 {
		all += fmt.Sprintf(`{"key":"user:%d"},`, i)
	}
	all += `{"key":"user:6"}]}`
	used := func(want, last int64) {
		t.Helper()
		for i := range 7 {
			n := want
			if i == 6 {
				n = last
			}
			w.wantUsed(t, fmt.Sprint("user:", i), n)
		}
	}
	again := `Idempotency-Key: "c"`
	first, alone := w.reserve(t, all), idOf(t, w.reserve(t, one))
	if first.body["atomic"] != false {
		t.Errorf("keys of several partitions: %s", first.text)
	}
	for _, keys := range []string{all, `{"checks":[{"key":"user:6"},{"key":"user:0"}]}`} {
		denied := w.do(t, "POST", "/v1/reservations", keys, again)
		wantStatus(t, denied, 429)
		for _, one := range denied.body["checks"].([]any) {
			answer := one.(map[string]any)
			list, ok := answer["windows"].([]any)
			denies := answer["key"] == "user:6"
			if !ok || denies != (len(list) == 2) || denies == (answer["note"] != nil) {
				t.Errorf("%v: want windows of the key that denies, and of the others none and a note", answer)
			}
		}
	}
	used(1, 2)
	wantStatus(t, w.settle(t, idOf(t, first), "commit", ""), 200)
	wantStatus(t, w.settle(t, idOf(t, first), "commit", ""), 200)
	wantStatus(t, w.settle(t, idOf(t, first), "cancel", ""), 409)
	used(1, 2)
	wantStatus(t, w.settle(t, alone, "cancel", ""), 200)
	used(1, 1)
	a := w.do(t, "POST", "/v1/reservations", all, again) // denied before, it is no other request
	wantStatus(t, w.settle(t, idOf(t, a), "cancel", ""), 200)
	used(1, 1)
}

// Calls over several partitions of a Cluster: looks, charges, denied ones that count, and calls
// that are sent again.
func modesOverPartitions(t *testing.T, client *redis.ClusterClient) {
	tokens := rule("tokens", func(r *windows.Rule) { r.OnDeny = windows.OnDenyCharge },
		windows.Window{Limit: 100, Per: time.Hour})
	w := newWorld(t, client, rule("user", nil, windows.Window{Limit: 10, Per: time.Hour}), tokens)
	if w.keys.Partition("user:1") == w.keys.Partition("user:2") {
		t.Fatal("the keys share a partition")
	}
	used := func(want map[string]int64) {
		t.Helper()
		for key, n := range want {
			w.wantUsed(t, key, n)
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
