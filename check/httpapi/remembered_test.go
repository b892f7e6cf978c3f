package httpapi_test

import (
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// While a denial is remembered, requests that count anyway are still counted, and a request that is sent again has
// the same answer as before.
func TestDenialsFromMemorySwallowNothing(t *testing.T) {
	tokens := rule("tokens", func(r *windows.Rule) { r.OnDeny = windows.OnDenyCharge }, tenAMinute.Windows...)
	w := newWorldWith(t, streamtest.Connect(t, streamtest.Redis(t)), func(c *check.Config, _ *httpapi.Config) {
		c.Denials = 100
		clock := time.Now()
		c.Now = func() time.Time { return clock } // what is remembered stays fresh
	}, tenAMinute, tokens)
	wantStatus(t, w.post(t, `{"key":"user:1","cost":10}`, "Idempotency-Key: a"), 200)
	wantStatus(t, w.get(t, "user:1", "mode=charge"), 200)
	wantStatus(t, w.get(t, "user:1", "mode=charge"), 200)
	wantStatus(t, w.get(t, "user:1"), 429) // remembered
	if a := w.get(t, "user:1", "mode=look"); a.status != 429 || a.str("source") != "cache" {
		t.Errorf("a look after a denial: %s", a.text)
	}
	if a := w.post(t, `{"key":"user:1","mode":"charge"}`); a.str("source") != "redis" {
		t.Errorf("a charge after a denial: %s", a.text)
	}
	wantStatus(t, w.post(t, `{"key":"user:1","cost":10}`, "Idempotency-Key: a"), 200)
	for range 4 {
		w.get(t, "tokens:1", "cost=6")
	}
	w.wantUsed(t, "user:1", 13)
	w.wantUsed(t, "tokens:1", 24)
}

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
