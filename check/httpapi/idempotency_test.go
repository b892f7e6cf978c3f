package httpapi_test

import (
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
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

// Events that are sent again with their key, after some or all of them were appended, count once.
func TestEventsWithAnIdempotencyKey(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), tenAMinute)
	const body = `[{"key":"user:1","count":2},{"key":"user:1","count":2},{"bad":1},
		{"key":"user:2"},{"key":"user:2","id":"own"}]`
	fold := func() {
		t.Helper()
		reader := eventlog.NewReader(w.redis, w.keys, "test", w.keys.All())
		testkit.Must(t, reader.CreateGroups(t.Context()))
		batches, err := reader.Read(t.Context(), 1000, -1)
		testkit.Must(t, err)
		counter := counters.New(w.redis, w.keys)
		rules, err := windows.NewRules([]*windows.Rule{tenAMinute})
		testkit.Must(t, err)
		for _, b := range batches {
			var events []counters.Event
			for _, m := range b.Messages {
				e, err := m.Decode()
				testkit.Must(t, err)
				events = append(events, counters.Event{ID: m.ID, Ms: m.Ms(), Key: e.Key, Count: e.Count,
					ProducerID: e.ID})
			}
			_, _, err := counter.FoldBatches(t.Context(), rules, []counters.Batch{{Partition: b.Partition,
				Events: events}})
			testkit.Must(t, err)
		}
	}
	w.clock.Store(0) // Redis's own
	wantStatus(t, w.do(t, "POST", "/v1/events", body, "Idempotency-Key: k"), 202)
	// Redis loses some of the appended events, as if the pipeline had ended in the middle.
	testkit.Must(t, w.redis.XTrimMaxLen(t.Context(), w.keys.Events(w.keys.Partition("user:1")), 1).Err())
	wantStatus(t, w.do(t, "POST", "/v1/events", body, "Idempotency-Key: k"), 202)
	fold()
	wantStatus(t, w.do(t, "POST", "/v1/events", body, "Idempotency-Key: k"), 202)
	fold()
	for key, want := range map[string]int64{"user:1": 4, "user:2": 2} {
		if n := w.used(t, key); n != want {
			t.Errorf("%s: used %d, want %d", key, n, want)
		}
	}
	wantProblem(t, w.do(t, "POST", "/v1/events", `[{"key":"user:1"}]`, "Idempotency-Key: k"), 422,
		"idempotency-key-reused", "another body")
	wantProblem(t, w.do(t, "POST", "/v1/events", body, "Idempotency-Key: a b"), 400, "bad-idempotency-key", "")
}
