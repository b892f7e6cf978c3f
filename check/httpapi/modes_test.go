package httpapi_test

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

// A look asks for any cost and charges nothing; what happened counts also above the limit.
func TestModes(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		for _, mode := range []string{"look", "take", "charge"} {
			a := w.get(t, "user:1", "cost=3", "mode="+mode)
			wantStatus(t, a, 200)
			if a.body["allowed"] != true {
				t.Errorf("%s: %s", mode, a.text)
			}
		}
		if n := w.used(t, "user:1"); n != 6 {
			t.Fatalf("used %d, want 6", n)
		}
		w.advance(time.Second)
		wantStatus(t, w.get(t, "user:1", "cost=4", "mode=look"), 200)
		a := w.get(t, "user:1", "cost=5", "mode=look")
		wantStatus(t, a, 429)
		if a.num("retry_after_ms") != 59_000 || a.body["charged"] != nil {
			t.Errorf("look: %s", a.text)
		}
		wantProblem(t, w.get(t, "user:1", "cost=11", "mode=look"), 400, "cost-exceeds-limit", "cost 11")
		a = w.post(t, `{"key":"user:1","cost":50,"mode":"charge"}`)
		wantStatus(t, a, 200)
		if a.body["allowed"] != false || a.body["charged"] != true || a.num("retry_after_ms") != 60_000 {
			t.Errorf("charge: %s", a.text)
		}
		if n := w.used(t, "user:1"); n != 56 {
			t.Errorf("used %d, want 56", n)
		}
		wantStatus(t, w.get(t, "user:1", "mode=look"), 429)
	}, tenAMinute)
}

// In one call takes and looks decide together; charges stand by themselves.
func TestModesOfSeveralKeys(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		wantStatus(t, w.post(t, `{"checks":[{"key":"user:1","mode":"look","cost":10},{"key":"user:2","cost":4}]}`), 200)
		wantStatus(t, w.post(t, `{"mode":"look","checks":[{"key":"user:2","cost":6},{"key":"user:3","mode":"take"}]}`),
			200)
		wantStatus(t, w.post(t, `{"checks":[{"key":"user:2","mode":"look","cost":7},{"key":"user:1"}]}`), 429)
		a := w.post(t, `{"mode":"charge","checks":[{"key":"user:2","cost":7},{"key":"user:1"}]}`)
		wantStatus(t, a, 200)
		if a.body["allowed"] != false || nth(t, a, 0)["allowed"] != false || nth(t, a, 0)["charged"] != true ||
			nth(t, a, 1)["allowed"] != true || nth(t, a, 1)["charged"] != nil {
			t.Errorf("charges: %s", a.text)
		}
		a = w.post(t, `{"each":true,"mode":"look","checks":[{"key":"user:2"},
			{"key":"user:4","mode":"charge","cost":11}]}`)
		wantStatus(t, a, 200)
		if nth(t, a, 0)["allowed"] != false || nth(t, a, 1)["charged"] != true {
			t.Errorf("each: %s", a.text)
		}
		for key, want := range map[string]int64{"user:1": 1, "user:2": 11, "user:3": 1, "user:4": 11} {
			if n := w.used(t, key); n != want {
				t.Errorf("%s: used %d, want %d", key, n, want)
			}
		}
		for body, says := range map[string]string{
			`{"key":"user:1","mode":"taken"}`:                                `mode "taken", expected take, look or`,
			`{"key":"user:1","mode":""}`:                                     "mode is empty",
			`{"key":"user:1","mode":1}`:                                      "mode is a number",
			`{"key":"user:1","mode":null}`:                                   "mode is null",
			`{"mode":"peek","checks":[{"key":"user:1"}]}`:                    `mode "peek"`,
			`{"checks":[{"key":"user:1","mode":"no"}]}`:                      `checks[0]: bad request: mode "no"`,
			`{"checks":[{"key":"user:1","mode":"charge"},{"key":"user:2"}]}`: "checks[1]: mode take beside mode charge",
			`{"checks":[{"key":"user:1","mode":"look"},{"key":"user:1"}]}`:   "with mode look and with mode take",
			`{"each":true,"mode":"x","checks":[{"key":"user:1"}]}`:           `mode "x"`,
		} {
			wantProblem(t, w.post(t, body), 400, "bad-request", says)
		}
		wantProblem(t, w.get(t, "user:1", "mode="), 400, "bad-request", "mode is empty")
		wantProblem(t, w.get(t, "user:1", "mode=all"), 400, "bad-request", `mode "all"`)
	}, tenAMinute)
}

// on_deny: charge counts what was denied, of several keys those whose rules say so; no cost
// is too high for it, and no denial from memory swallows one.
func TestOnDenyCharge(t *testing.T) {
	tokens := rule("tokens", func(r *windows.Rule) { r.OnDeny = windows.OnDenyCharge },
		windows.Window{Limit: 1000, Per: time.Minute})
	onEveryRedis(t, func(t *testing.T, w *world) {
		wantStatus(t, w.get(t, "tokens:1", "cost=900"), 200)
		a := w.get(t, "tokens:1", "cost=500")
		wantProblem(t, a, 429, "over-limit", "is over the limit of rule")
		if a.body["charged"] != true || a.num("retry_after_ms") != 60_000 {
			t.Errorf("%s", a.text)
		}
		if n := w.used(t, "tokens:1"); n != 1400 {
			t.Errorf("used %d, want 1400", n)
		}
		wantStatus(t, w.get(t, "tokens:1", "mode=look"), 429)
		a = w.get(t, "tokens:1", "cost=5000")
		wantProblem(t, a, 429, "over-limit", "it can never be admitted")

		a = w.post(t, `{"checks":[{"key":"tokens:1"},{"key":"tokens:2","cost":7},{"key":"user:1"}]}`)
		wantProblem(t, a, 429, "over-limit", `only the checks with "charged" count`)
		for i, charged := range []any{true, true, nil} {
			if nth(t, a, i)["charged"] != charged {
				t.Errorf("check %d: %v", i, nth(t, a, i))
			}
		}
		for key, want := range map[string]int64{"tokens:1": 6401, "tokens:2": 7, "user:1": 0} {
			if n := w.used(t, key); n != want {
				t.Errorf("%s: used %d, want %d", key, n, want)
			}
		}
	}, tenAMinute, tokens)
}

// While a denial is remembered, what counts all the same still does, and a request that is sent
// again has the answer that it had.
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
	for key, want := range map[string]int64{"user:1": 13, "tokens:1": 24} {
		if n := w.used(t, key); n != want {
			t.Errorf("%s: used %d, want %d", key, n, want)
		}
	}
}

// The same key with the same body has one answer and is charged once.
func TestIdempotencyKey(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		first := w.post(t, `{"key":"user:1","cost":6}`, "Idempotency-Key: a")
		wantStatus(t, first, 200)
		w.advance(time.Second)
		for _, body := range []string{`{"key":"user:1","cost":6}`, `{"cost":6, "key":"user:1", "mode":"take"}`} {
			again := w.post(t, body, `Idempotency-Key: "a"`)
			wantStatus(t, again, 200)
			same := fmt.Sprint(again.body["windows"]) == fmt.Sprint(first.body["windows"])
			if again.body["replayed"] != true || !same {
				t.Errorf("first %s, again %s", first.text, again.text)
			}
		}
		denied := w.post(t, `{"key":"user:1","cost":6}`, "Idempotency-Key: b")
		wantStatus(t, denied, 429)
		w.advance(time.Minute)
		if again := w.post(t, `{"key":"user:1","cost":6}`, "Idempotency-Key: b"); again.status != 429 ||
			again.num("retry_after_ms") != denied.num("retry_after_ms") {
			t.Errorf("first %s, again %s", denied.text, again.text)
		}
		for _, body := range []string{`{"key":"user:1","cost":7}`, `{"key":"user:2","cost":6}`,
			`{"key":"user:1","cost":6,"mode":"charge"}`, `{"checks":[{"key":"user:1","cost":6},{"key":"user:2"}]}`} {
			wantProblem(t, w.post(t, body, "Idempotency-Key: a"), 422, "idempotency-key-reused", "another body")
		}
		for range 3 {
			wantStatus(t, w.post(t, `{"checks":[{"key":"user:1","cost":3},{"key":"user:2"}]}`,
				"Idempotency-Key: c"), 200)
			wantStatus(t, w.post(t, `{"each":true,"checks":[{"key":"user:1"},{"key":"user:2"}]}`, "Idempotency-Key: d"),
				200)
		}
		for key, want := range map[string]int64{"user:1": 4, "user:2": 2} {
			if n := w.used(t, key); n != want {
				t.Errorf("%s: used %d, want %d", key, n, want)
			}
		}
		for value, says := range map[string]string{
			"": "0 characters", `""`: "0 characters", `"a`: `expected a "`, "a b": "visible characters",
			"\"a\";ttl=0": "ttl",
			`"a";ttl=x`:   "ttl=SECONDS", `"a" b`: "after the key", "ü": "visible characters",
			url.QueryEscape(fmt.Sprintf("%0101d", 0)): "101 characters",
		} {
			wantProblem(t, w.post(t, `{"key":"user:1"}`, "Idempotency-Key: "+value), 400, "bad-idempotency-key", says)
		}
		wantProblem(t, w.post(t, `{"key":"user:1"}`, "Idempotency-Key: a", "Idempotency-Key: a"), 400,
			"bad-idempotency-key", "2 times")
	}, tenAMinute)
}
