package httpapi_test

import (
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
