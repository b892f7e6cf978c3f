package httpapi_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// An answer is remembered for as long as the caller wants, and no longer than the retention.
func TestIdempotencyKeysAreForgotten(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), tenAMinute)
	name := w.keys.Idempotency(w.keys.Partition("k"), "k")
	w.post(t, `{"key":"user:1"}`, `Idempotency-Key: "k";ttl=1000`)
	ttl := w.redis.PTTL(t.Context(), name).Val()
	if ttl <= 0 || ttl > 10*time.Minute { // by a clock that is handed in, 10 minutes at least
		t.Errorf("the memory of a key lives for %s", ttl)
	}
	for _, foreign := range []string{"", "words", "f 7 7", "f 1 x"} {
		testkit.Must(t, w.redis.Set(t.Context(), name, foreign, 0).Err())
		wantStatus(t, w.post(t, `{"key":"user:1"}`, "Idempotency-Key: k"), 200)
	}
	testkit.Must(t, w.redis.Del(t.Context(), name).Err())
	testkit.Must(t, w.redis.LPush(t.Context(), name, "a").Err())
	wantStatus(t, w.post(t, `{"key":"user:1"}`, "Idempotency-Key: k"), 200)
	if n := w.used(t, "user:1"); n != 6 {
		t.Errorf("used %d, want 6: foreign data is no memory", n)
	}
}

// Events that are sent again with their key have the same ids as before, after some or all of them were appended.
// With the same ids they count once (internal/counters).
func TestEventsWithAnIdempotencyKey(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), tenAMinute)
	const body = `[{"key":"user:1","count":2},{"key":"user:1","count":2},{"bad":1},
		{"key":"user:2"},{"key":"user:2","id":"own"}]`
	append := func() (ids []string) {
		t.Helper()
		wantStatus(t, w.do(t, "POST", "/v1/events", body, "Idempotency-Key: k"), 202)
		for _, key := range []string{"user:1", "user:2"} {
			events := w.keys.Events(w.keys.Partition(key))
			for _, m := range w.redis.XRange(t.Context(), events, "-", "+").Val() {
				ids = slices.Concat(ids, []string{fmt.Sprint(m.Values["id"])})
			}
			testkit.Must(t, w.redis.Del(t.Context(), events).Err())
		}
		return ids
	}
	first := append()
	if again := append(); !slices.Equal(again, first) {
		t.Errorf("the ids were %q, and are %q", first, again)
	}
	if slices.Sort(first); len(slices.Compact(first)) != 4 || !slices.Contains(first, "own") {
		t.Errorf("the ids are %q, want four, of which the producer gave one", first)
	}
	wantProblem(t, w.do(t, "POST", "/v1/events", `[{"key":"user:1"}]`, "Idempotency-Key: k"), 422,
		"idempotency-key-reused", "another body")
	wantProblem(t, w.do(t, "POST", "/v1/events", body, "Idempotency-Key: a b"), 400, "bad-idempotency-key", "")
}
