package httpapi_test

import (
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
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
