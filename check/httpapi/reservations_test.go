package httpapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/windows"
)

func (w *world) reserve(t *testing.T, body string) answer {
	t.Helper()
	return w.do(t, http.MethodPost, "/v1/reservations", body)
}

func (w *world) settle(t *testing.T, id, verb, body string) answer {
	t.Helper()
	if verb == "cancel" {
		return w.do(t, http.MethodDelete, "/v1/reservations/"+id, "")
	}
	return w.do(t, http.MethodPost, "/v1/reservations/"+id+"/"+verb, body)
}

func idOf(t *testing.T, a answer) string {
	t.Helper()
	wantStatus(t, a, 201)
	id, _ := a.body["id"].(string)
	if id == "" {
		t.Fatalf("no id: %s", a.text)
	}
	return id
}

// What is reserved counts as used; a commit charges what it was, above what was reserved too, and
// each end can be sent again.
func TestReservations(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		a := w.reserve(t, `{"key":"user:1","cost":4,"ttl_ms":20000}`)
		first := idOf(t, a)
		if a.num("expires_ms") != 1_700_000_020_000 || a.num("ttl_ms") != 20_000 || w.used(t, "user:1") != 4 {
			t.Errorf("reserved: %s", a.text)
		}
		second := idOf(t, w.reserve(t, `{"key":"user:1","cost":6}`))
		wantStatus(t, w.post(t, `{"key":"user:1"}`), 429)
		wantStatus(t, w.reserve(t, `{"key":"user:1"}`), 429)
		for range 2 {
			a := w.settle(t, first, "commit", `{"cost":7}`)
			wantStatus(t, a, 200)
			if a.body["state"] != "committed" || w.used(t, "user:1") != 13 {
				t.Errorf("commit: %s, %d used", a.text, w.used(t, "user:1"))
			}
		}
		wantProblem(t, w.settle(t, first, "commit", `{"cost":8}`), 409, "reservation-settled", "another cost")
		wantProblem(t, w.settle(t, first, "cancel", ""), 409, "reservation-settled", "was committed")
		for range 2 {
			wantStatus(t, w.settle(t, second, "cancel", ""), 200)
			if n := w.used(t, "user:1"); n != 7 {
				t.Errorf("used %d after the second was cancelled, want 7", n)
			}
		}
		wantProblem(t, w.settle(t, second, "commit", ""), 409, "reservation-settled", "was cancelled")
		wantProblem(t, w.settle(t, "0a-3", "commit", ""), 404, "no-reservation", "0a-3")
		wantProblem(t, w.settle(t, "no%20id", "commit", ""), 404, "no-reservation", "no id")
		third := idOf(t, w.reserve(t, `{"key":"user:1","cost":3,"ttl_ms":1000}`))
		w.advance(900 * time.Millisecond)
		a = w.settle(t, third, "renew", "")
		wantStatus(t, a, 200)
		if a.num("expires_ms") != 1_700_000_001_900 || a.body["state"] != "open" {
			t.Errorf("renewed: %s", a.text)
		}
		w.advance(time.Second)
		wantProblem(t, w.settle(t, third, "commit", ""), 410, "reservation-expired", third)
		if n := w.used(t, "user:1"); n != 10 {
			t.Errorf("used %d after it expired, want 10: it is charged as reserved", n)
		}
		w.advance(60 * time.Second)
		if n := w.used(t, "user:1"); n != 0 {
			t.Errorf("used %d after the window", n)
		}
	}, tenAMinute)
}

// A reservation of several keys is made of all or of none, and settled as a whole.
func TestReservationsOfSeveralKeys(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		a := w.reserve(t, `{"checks":[{"key":"user:1","cost":4},{"key":"user:2","cost":10}]}`)
		id := idOf(t, a)
		if w.used(t, "user:1") != 4 || w.used(t, "user:2") != 10 || nth(t, a, 1)["key"] != "user:2" {
			t.Errorf("reserved: %s", a.text)
		}
		wantStatus(t, w.reserve(t, `{"checks":[{"key":"user:1"},{"key":"user:2"}]}`), 429)
		if n := w.used(t, "user:1"); n != 4 {
			t.Errorf("used %d after a denied one, want 4", n)
		}
		wantProblem(t, w.settle(t, id, "commit", `{"checks":[{"key":"user:3","cost":1}]}`), 400, "bad-request",
			"checks[0]")
		a = w.settle(t, id, "commit", `{"checks":[{"key":"user:1","cost":0},{"key":"user:2","cost":12}]}`)
		wantStatus(t, a, 200)
		if w.used(t, "user:1") != 0 || w.used(t, "user:2") != 12 {
			t.Errorf("committed: %s", a.text)
		}
	}, tenAMinute)
}

// At most so many at once; a slot is free when it is given back, and when its time is over.
func TestInFlight(t *testing.T) {
	slots := rule("job", nil, windows.Window{Limit: 2, Per: 30 * time.Second, InFlight: true},
		windows.Window{Limit: 100, Per: time.Hour})
	onEveryRedis(t, func(t *testing.T, w *world) {
		wantProblem(t, w.post(t, `{"key":"job:a"}`), 400, "needs-reservation", "in_flight")
		wantStatus(t, w.get(t, "job:a", "mode=look"), 200)
		first := idOf(t, w.reserve(t, `{"key":"job:a"}`))
		idOf(t, w.reserve(t, `{"key":"job:a"}`))
		a := w.reserve(t, `{"key":"job:a"}`)
		wantStatus(t, a, 429)
		if a.num("retry_after_ms") != 30_000 {
			t.Errorf("denied: %s", a.text)
		}
		wantStatus(t, w.settle(t, first, "commit", ""), 200)
		idOf(t, w.reserve(t, `{"key":"job:a"}`))
		wantStatus(t, w.reserve(t, `{"key":"job:a"}`), 429)
		w.advance(30 * time.Second) // nobody sweeps here
		for range 2 {
			idOf(t, w.reserve(t, `{"key":"job:a","ttl_ms":500}`))
		}
		wantStatus(t, w.reserve(t, `{"key":"job:a"}`), 429)
		wantProblem(t, w.reserve(t, `{"key":"job:a","ttl_ms":30001}`), 400, "bad-request", "in_flight: 30s")
	}, slots)
}

// An operator's block denies reservations too.
func TestReservationsOfABlockedKey(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		wantStatus(t, w.do(t, "PUT", "/v1/overrides/user:1", `{"block":true,"for":"1h","reason":"abuse"}`), 200)
		a := w.reserve(t, `{"key":"user:1"}`)
		if a.status != 429 || a.str("reason") != "abuse" || a.body["id"] != nil {
			t.Errorf("reserved: %d %s", a.status, a.text)
		}
		a = w.reserve(t, `{"checks":[{"key":"user:2"},{"key":"user:1"}]}`)
		if a.status != 429 || w.used(t, "user:2") != 0 {
			t.Errorf("of two keys: %d %s", a.status, a.text)
		}
	}, tenAMinute)
}

// Bad requests are refused with what is wrong.
func TestBadReservations(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		for body, want := range map[string]string{
			`{"key":"user:1","cost":11}`:                   "cost-exceeds-limit cost 11",
			`{"key":"user:1","ttl_ms":5}`:                  "bad-request ttl_ms is 5",
			`{"key":"user:1","ttl_ms":-5}`:                 "bad-request ttl_ms is -5",
			`{"key":"user:1","ttl_ms":86400001}`:           "bad-request ttl_ms is 86400001",
			`{"key":"user:1","cost":0}`:                    "bad-count 0",
			`{"key":"user:1","mode":"look"}`:               "bad-request mode",
			`{"checks":[{"key":"user:1","mode":"look"}]}`:  "bad-request checks[0]",
			`{"checks":[]}`:                                "bad-request 0 entries",
			`{"key":"user:1","checks":[{"key":"user:1"}]}`: "bad-request either",
			`{"key":""}`:                        "bad-key empty",
			`{"key":"user:1","cost":6,"ttl":5}`: "bad-request ttl",
			`{"checks":[{"key":"user:1","cost":6},{"key":"user:1","cost":6}]}`: "cost-exceeds-limit cost 12",
		} {
			typ, text, _ := strings.Cut(want, " ")
			wantProblem(t, w.reserve(t, body), 400, typ, text)
		}
		wantProblem(t, w.reserve(t, `{"key":"nobody"}`), 404, "no-rule", "nobody")
		id := idOf(t, w.reserve(t, `{"key":"user:1"}`))
		for body, want := range map[string]string{
			`{"cost":-1}`:  "bad-count -1",
			`{"cost":1.5}`: "bad-request cost",
			`{"cost":1,"checks":[{"key":"user:1","cost":1}]}`: "bad-request either",
			`{"checks":[{"key":"user:1"}]}`:                   "bad-request no cost",
		} {
			typ, text, _ := strings.Cut(want, " ")
			wantProblem(t, w.settle(t, id, "commit", body), 400, typ, text)
		}
		if a := w.settle(t, id, "begin", ""); a.status != 404 {
			t.Errorf("another verb: %s", a.text)
		}
		if n := w.used(t, "user:1"); n != 1 {
			t.Errorf("used %d, want the 1 that is reserved", n)
		}
	}, tenAMinute)
}

// A request with an idempotency key reserves once, however often it is sent.
func TestReservationsSentAgain(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		h := `Idempotency-Key: "k1"`
		var ids []string
		for range 3 {
			ids = append(ids, idOf(t, w.do(t, http.MethodPost, "/v1/reservations", `{"key":"user:1","cost":4}`, h)))
		}
		if fmt.Sprint(ids) != fmt.Sprint([]string{ids[0], ids[0], ids[0]}) || w.used(t, "user:1") != 4 {
			t.Errorf("ids %v, %d used, want one id and 4", ids, w.used(t, "user:1"))
		}
		wantProblem(t, w.do(t, http.MethodPost, "/v1/reservations", `{"key":"user:1","cost":5}`, h), 422,
			"idempotency-key-reused", "another")
		wantStatus(t, w.settle(t, ids[0], "cancel", ""), 200)
		wantProblem(t, w.do(t, http.MethodPost, "/v1/reservations", `{"key":"user:1","cost":4}`, h), 409,
			"reservation-settled", ids[0])
	}, tenAMinute)
}

// The body may have no other keys either, wherever they lie.
func TestAnIdempotencyKeyIsOfOneReservation(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		const one, two, other = `{"key":"user:1"}`, `{"checks":[{"key":"user:1"},{"key":"user:2"}]}`,
			`{"checks":[{"key":"user:1"},{"key":"user:3"}]}`
		for i, bodies := range [][2]string{{one, two}, {two, one}, {two, other}} {
			name := fmt.Sprintf("Idempotency-Key: k%d", i)
			reserve := func(body string) answer { return w.do(t, http.MethodPost, "/v1/reservations", body, name) }
			id := idOf(t, reserve(bodies[0]))
			wantProblem(t, reserve(bodies[1]), 422, "idempotency-key-reused", "another")
			if again := idOf(t, reserve(bodies[0])); again != id || w.used(t, "user:1") != 1 {
				t.Errorf("%s, sent again %s, %d used", id, again, w.used(t, "user:1"))
			}
			wantStatus(t, w.settle(t, id, "cancel", ""), 200)
			wantProblem(t, reserve(bodies[1]), 422, "idempotency-key-reused", "another")
		}
	}, tenAMinute)
}

// askReservations asks for every answer to do with reservations that the document names.
func askReservations(ask asker, open, broken http.Handler) {
	const path, again = "/v1/reservations", `Idempotency-Key: "r1"`
	ask(open, 201, "POST", path, `{"key":"user:7","cost":2}`, again)
	ask(open, 422, "POST", path, `{"key":"user:7","cost":3}`, again)
	ask(open, 201, "POST", path, `{"checks":[{"key":"user:7"},{"key":"user:8"}],"ttl_ms":1000}`)
	ask(open, 429, "POST", path, `{"key":"user:7","cost":9}`)
	ask(open, 429, "POST", path, `{"checks":[{"key":"user:7","cost":9},{"key":"user:8"}]}`)
	ask(open, 400, "POST", path, `{"key":"user:7","ttl_ms":1}`)
	ask(open, 404, "POST", path, `{"key":"nobody"}`)
	ask(open, 413, "POST", path, `{"key":"`+strings.Repeat("x", 70_000)+`"}`)
	ask(broken, 503, "POST", path, `{"key":"strict:1"}`)
}

// askSettlements does so for the ends of reservations.
func askSettlements(t *testing.T, w *world, ask asker, open, broken http.Handler) {
	reserved := func() string { return "/v1/reservations/" + idOf(t, w.reserve(t, `{"key":"user:9","ttl_ms":1000}`)) }
	again := `Idempotency-Key: "r2"`
	once := w.do(t, "POST", "/v1/reservations", `{"key":"user:9"}`, again)
	cancelled, open1, expired := "/v1/reservations/"+idOf(t, once), reserved(), reserved()
	ask(open, 200, "POST", open1+"/renew", `{"ttl_ms":5000}`)
	ask(open, 200, "DELETE", cancelled, "")
	ask(open, 409, "POST", "/v1/reservations", `{"key":"user:9"}`, again)
	ask(open, 409, "POST", cancelled+"/renew", "")
	ask(open, 409, "POST", cancelled+"/commit", "")
	w.advance(2 * time.Second)
	ask(open, 200, "POST", open1+"/commit", `{"cost":3}`)
	ask(open, 200, "POST", open1+"/commit", `{"cost":3}`)
	ask(open, 409, "DELETE", open1, "")
	large := `{"ttl":"` + strings.Repeat("x", 70_000) + `"}`
	for _, end := range [][2]string{{"POST", "/commit"}, {"POST", "/renew"}, {"DELETE", ""}} {
		ask(open, 410, end[0], expired+end[1], "")
		ask(open, 404, end[0], "/v1/reservations/0a-1"+end[1], "")
		ask(broken, 503, end[0], "/v1/reservations/0a-1"+end[1], "")
		if end[0] == "POST" {
			ask(open, 400, end[0], open1+end[1], `{"costs":1}`)
			ask(open, 413, end[0], open1+end[1], large)
		}
	}
}
