package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// described is the document, and what was asked of it: "METHOD path status" → seen.
type described struct {
	t    *testing.T
	doc  *openapi3.T
	seen map[string]bool
}

// kin-openapi: the one library at hand that validates answers against 3.1.
func describe(t *testing.T) *described {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(httpapi.OpenAPI)
	testkit.Must(t, err)
	testkit.Must(t, doc.Validate(t.Context()))
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("the document is of %s", doc.OpenAPI)
	}
	return &described{t, doc, map[string]bool{}}
}

// pathOf is the document's path of a request.
func pathOf(r *http.Request) (path string, params map[string]string) {
	if key, ok := strings.CutPrefix(r.URL.Path, "/v1/keys/"); ok {
		return "/v1/keys/{key}", map[string]string{"key": key}
	}
	for _, path := range []string{"/v1/overrides/", "/v1/history/"} {
		if key, ok := strings.CutPrefix(r.URL.Path, path); ok {
			return path + "{key}", map[string]string{"key": key}
		}
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, "/v1/reservations/"); ok {
		id, verb, _ := strings.Cut(rest, "/")
		return strings.TrimSuffix("/v1/reservations/{id}/"+verb, "/"), map[string]string{"id": id}
	}
	return r.URL.Path, nil
}

// slowBody is for a body that is not there at the deadline of the connection.
const slowBody = "slow"

// ask sends a request and compares the answer with the document. If the request succeeds, it compares the request
// too.
func (d *described) ask(h http.Handler, r *http.Request, body string, want int) {
	d.t.Helper()
	path, params := pathOf(r)
	what := fmt.Sprintf("%s %s %d", r.Method, path, want)
	if r.Body = http.NoBody; body != "" {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		r.Header.Set("Content-Type", "application/json")
	}
	if body == slowBody {
		r.Body = io.NopCloser(iotest.ErrReader(os.ErrDeadlineExceeded))
	}
	item := d.doc.Paths.Value(path)
	if item == nil || item.GetOperation(r.Method) == nil {
		d.t.Errorf("%s is not in the document", what)
		return
	}
	in := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, QueryParams: r.URL.Query(),
		Route: &routers.Route{Spec: d.doc, Path: path, PathItem: item, Method: r.Method,
			Operation: item.GetOperation(r.Method)},
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc,
			IncludeResponseStatus: true, MultiError: true},
	}
	if want < 300 {
		if err := openapi3filter.ValidateRequest(r.Context(), in); err != nil {
			d.t.Errorf("%s: the request: %v", what, err)
		}
		r.Body = io.NopCloser(strings.NewReader(body))
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	if rec.Code != want {
		d.t.Errorf("%s: %d %s", what, rec.Code, rec.Body)
		return
	}
	if err := openapi3filter.ValidateResponse(d.t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: rec.Code, Header: rec.Header(), Body: io.NopCloser(rec.Body),
		Options: in.Options,
	}); err != nil {
		d.t.Errorf("%s: %v", what, err)
	}
	d.seen[what] = true
}

// Every path, method and status of the document is asked for, every answer is as
// it says, and every route is in it.
func TestOpenAPI(t *testing.T) {
	d := describe(t)
	away := func(c *check.Config, h *httpapi.Config) { c.Timeout, h.AppendTimeout = timeout, timeout }
	strict := rule("strict", func(r *windows.Rule) { r.OnError = windows.OnErrorDeny }, tenAMinute.Windows...)
	shadow := rule("shadow", func(r *windows.Rule) { r.Shadow = true }, tenAMinute.Windows...)
	w := newWorldWith(t, streamtest.AnyRedis(t),
		func(_ *check.Config, h *httpapi.Config) { h.Extractors = newExtractors(t) }, tenAMinute, strict, shadow,
		hotRule)
	gone := newWorldWith(t, streamtest.Connect(t, "127.0.0.1:1"), away, strict, hotRule)
	tokens := newTokens(t)
	router := func(w *world, tokens *access.Tokens, ready error) *httpapi.Router {
		x := httpapi.NewRouter(tokens, w.server.Routes(func(context.Context) error { return ready })...)
		x.Add(httpapi.Route{Method: "GET", Path: "/metrics", Scope: access.ScopeRead,
			Serve: promhttp.HandlerFor(w.registry, promhttp.HandlerOpts{})})
		return x
	}
	open, guarded, broken := router(w, nil, nil), router(w, tokens, nil), router(gone, nil, errors.New("Redis is away"))
	ask := func(h http.Handler, want int, method, target, body string, headers ...string) {
		t.Helper()
		r := httptest.NewRequest(method, target, nil)
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			r.Header.Set(name, value)
		}
		d.ask(h, r, body, want)
	}
	askChecks(ask, open, broken)

	for _, method := range []string{"GET", "DELETE"} {
		ask(open, 200, method, "/v1/keys/user:1", "")
		ask(open, 400, method, "/v1/keys/%00", "")
		ask(open, 404, method, "/v1/keys/nobody", "")
		ask(broken, 503, method, "/v1/keys/strict:1", "")
	}
	ask(open, 200, "GET", "/v1/check?key=user:1&cost=10", "")
	ask(open, 200, "GET", "/v1/throttled", "")
	ask(open, 200, "GET", "/v1/throttled?limit=1", "")
	ask(open, 200, "GET", "/v1/throttled?rule=user&shadow=false", "")
	ask(open, 400, "GET", "/v1/throttled?after=x", "")
	ask(broken, 503, "GET", "/v1/throttled", "")

	askOverrides(ask, open, broken)
	askTop(ask, open, broken)
	askDecisions(ask, open, broken)

	for _, path := range []string{"/openapi.json", "/metrics", "/healthz", "/readyz"} {
		ask(open, 200, "GET", path, "")
	}
	ask(broken, 503, "GET", "/readyz", "")
	ask(broken, 200, "GET", "/healthz", "")

	askReservations(ask, open, broken)
	askSettlements(t, w, ask, open, broken)
	askLeases(ask, open, broken)

	d.askRoutes(ask, open, guarded)
	d.allSeen()
}

// asker sends a request and expects a status.
type asker func(h http.Handler, want int, method, target, body string, headers ...string)

// askChecks asks for checks: allowed, denied, of one and several, without a rule, in the shadow,
// by extractors; and for events.
func askChecks(ask asker, open, broken http.Handler) {
	ask(open, 200, "GET", "/v1/check?key=user:1&cost=10", "")
	ask(open, 429, "GET", "/v1/check?key=user:1", "")
	ask(open, 418, "GET", "/v1/check?key=user:1&deny_status=418", "")
	ask(open, 418, "GET", "/v1/check?key=user:1&cost=11&deny_status=418", "")
	for _, status := range []int{400, 401, 403, 499} { // have other meanings too
		ask(open, status, "GET", fmt.Sprintf("/v1/check?key=user:1&deny_status=%d", status), "")
	}
	ask(open, 200, "GET", "/v1/check?key=nobody", "")
	ask(open, 200, "GET", "/v1/check?extractor=by-address", "")
	ask(open, 200, "GET", "/v1/check?extractor=by-secret", "")
	ask(open, 400, "GET", "/v1/check?extractor=by-key", "")
	ask(open, 400, "GET", "/v1/check?key=", "")
	ask(open, 200, "POST", "/v1/check", `{"key":"user:2","cost":9}`)
	ask(open, 200, "POST", "/v1/check", `{"key":"shadow:1","cost":10}`)
	ask(open, 200, "POST", "/v1/check", `{"key":"shadow:1"}`)
	ask(open, 429, "POST", "/v1/check", `{"key":"user:2","cost":2}`)
	ask(open, 200, "POST", "/v1/check", `{"checks":[{"key":"user:3"},{"key":"nobody"}]}`)
	ask(open, 429, "POST", "/v1/check", `{"checks":[{"key":"user:3"},{"key":"user:2","cost":2}]}`)
	ask(open, 200, "POST", "/v1/check",
		`{"each":true,"checks":[{"key":"user:3"},{"key":"user:2","cost":2},
			{"key":"nobody"},{"key":"user:3","cost":11}]}`)
	ask(open, 400, "POST", "/v1/check", `{"key":"user:2","cost":11}`)
	ask(open, 413, "POST", "/v1/check", `{"key":"`+strings.Repeat("x", 70_000)+`"}`)
	ask(broken, 503, "GET", "/v1/check?key=strict:1", "")
	ask(open, 200, "GET", "/v1/check?key=user:4&cost=3&mode=look", "")
	ask(open, 200, "GET", "/v1/check?key=user:4&cost=30&mode=charge", "")
	ask(open, 429, "GET", "/v1/check?key=user:4&mode=look", "")
	ask(open, 200, "POST", "/v1/check", `{"key":"user:4","mode":"charge"}`)
	ask(open, 200, "POST", "/v1/check", `{"mode":"charge","checks":[{"key":"user:4"},{"key":"user:5"}]}`)
	ask(open, 200, "POST", "/v1/check", `{"key":"user:5"}`, "Idempotency-Key: one")
	ask(open, 200, "POST", "/v1/check", `{"key":"user:5"}`, `Idempotency-Key: "one";ttl=30`)
	ask(open, 422, "POST", "/v1/check", `{"key":"user:6"}`, "Idempotency-Key: one")
	ask(open, 202, "POST", "/v1/events", `[{"key":"user:1"}]`, "Idempotency-Key: one")
	ask(open, 422, "POST", "/v1/events", `[{"key":"user:2"}]`, "Idempotency-Key: one")
	ask(broken, 503, "POST", "/v1/check", `{"key":"strict:1"}`)

	// Events: taken, in part, too many, not stored.
	ask(open, 202, "POST", "/v1/events", `[{"key":"user:1"},{"key":"user:1","count":3,"id":"a"}]`)
	ask(open, 400, "POST", "/v1/events", `[`)
	ask(open, 413, "POST", "/v1/events", strings.Repeat("-\n", 100_001))
	ask(broken, 503, "POST", "/v1/events", `[{"key":"user:1"}]`)
}

// askRoutes asks each route without a token, with one of another scope, and as one who does not wait.
func (d *described) askRoutes(ask asker, open, guarded *httpapi.Router) {
	canceled, cancel := context.WithCancel(d.t.Context())
	cancel()
	other := map[access.Scope]string{access.ScopeCheck: reader, access.ScopeAppend: reader, access.ScopeRead: checker,
		access.ScopeAdmin: checker}
	var routes []httpapi.Route
	for _, route := range open.Routes() {
		if strings.HasSuffix(route.Path, "/") {
			route.Path += map[bool]string{true: "user:1", false: "0a-1"}[route.Path == "/v1/keys/"]
		}
		if route.Method == "POST" && strings.HasPrefix(route.Path, "/v1/reservations/") {
			routes = append(routes, httpapi.Route{Method: "POST", Path: route.Path + "/commit", Scope: route.Scope})
			route.Path += "/renew"
		}
		routes = append(routes, route)
	}
	for _, route := range routes {
		target := route.Path
		if path, _ := pathOf(httptest.NewRequest(route.Method, target, nil)); d.doc.Paths.Value(path) == nil ||
			d.doc.Paths.Value(path).GetOperation(route.Method) == nil {
			d.t.Errorf("%s %s is not in the document", route.Method, target)
			continue
		}
		if !route.Open {
			ask(guarded, 401, route.Method, target, "")
			ask(guarded, 403, route.Method, target, "", "Authorization: Bearer "+other[route.Scope])
		}
		if route.Method == "POST" || route.Method == "PUT" {
			ask(open, 415, route.Method, target, "{}", "Content-Encoding: gzip")
			ask(open, 408, route.Method, target, slowBody)
		}
		for path, body := range map[string]string{"/v1/check": `{"key":"user:1"}`, "/v1/keys/": "",
			"/v1/throttled": "", "/v1/decisions": "", "/v1/decisions/stream": "",
			"/v1/reservations": `{"key":"user:7"}`, "/v1/reservations/": ""} {
			if route.Path == path || strings.HasSuffix(path, "/") && strings.HasPrefix(route.Path, path) {
				if path == "/v1/check" && route.Method == "GET" {
					target += "?key=user:1"
				}
				d.ask(open, httptest.NewRequest(route.Method, target, nil).WithContext(canceled), body, 499)
			}
		}
	}
}

// allSeen reports what the document names and no test has seen.
func (d *described) allSeen() {
	for path, item := range d.doc.Paths.Map() {
		for method, operation := range item.Operations() {
			for status := range operation.Responses.Map() {
				what := fmt.Sprintf("%s %s %s", method, path, strings.Replace(status, "4XX", "418", 1))
				if !d.seen[what] {
					d.t.Errorf("%s is in the document, and was not seen", what)
				}
			}
		}
	}
	d.t.Logf("%d kinds of answers: %s", len(d.seen), strings.Join(slices.Sorted(maps.Keys(d.seen)), ", "))
}

// askOverrides asks for overrides: set, read, refused, without Redis.
func askOverrides(ask asker, open, broken http.Handler) {
	ask(open, 200, "PUT", "/v1/overrides/user:9", `{"block":true,"for":"1h","reason":"abuse"}`)
	ask(open, 429, "POST", "/v1/check", `{"key":"user:9"}`)
	ask(open, 200, "GET", "/v1/keys/user:9", "")
	ask(open, 200, "PUT", "/v1/overrides/user:10", `{"block":true}`)
	for _, path := range []string{"/v1/check", "/v1/reservations"} { // no wait helps
		ask(open, 429, "POST", path, `{"key":"user:10"}`)
	}
	ask(open, 418, "GET", "/v1/check?key=user:10&deny_status=418", "")
	ask(open, 400, "PUT", "/v1/overrides/user:9", `{}`)
	ask(open, 413, "PUT", "/v1/overrides/user:9", `{"reason":"`+strings.Repeat("x", 70_000)+`"}`)
	ask(broken, 503, "PUT", "/v1/overrides/user:9", `{"exempt":true}`)
	ask(open, 200, "PUT", "/v1/overrides/user:9%2A", `{"windows":[{"limit":5,"per":"1m"}],"until":"2024-01-01"}`)
	ask(open, 200, "GET", "/v1/overrides?limit=1", "")
	ask(open, 400, "GET", "/v1/overrides?limit=0", "")
	ask(open, 200, "GET", "/v1/overrides/user:9", "")
	ask(open, 404, "GET", "/v1/overrides/user:8", "")
	ask(open, 400, "GET", "/v1/overrides/%00", "")
	ask(broken, 503, "GET", "/v1/overrides/user:9", "")
	ask(open, 400, "DELETE", "/v1/overrides/%00", "")
	ask(open, 200, "DELETE", "/v1/overrides/user:9?reason=mistake", "")
	ask(broken, 503, "DELETE", "/v1/overrides/user:9", "")
	ask(open, 200, "GET", "/v1/history/user:9", "")
	ask(open, 400, "GET", "/v1/history/%00", "")
	ask(broken, 503, "GET", "/v1/history/user:9", "")
}

// askDecisions asks as bouncers do.
func askDecisions(ask asker, open, broken http.Handler) {
	ask(open, 200, "PUT", "/v1/overrides/ip:192.0.2.1", `{"block":true}`)
	ask(open, 200, "GET", "/v1/decisions?ip=192.0.2.1", "")
	ask(open, 200, "GET", "/v1/decisions?type=captcha", "")
	ask(open, 200, "GET", "/v1/decisions/stream?startup=true&scopes=ip,range", "")
	ask(open, 200, "GET", "/v1/decisions/stream", "")
	for _, path := range []string{"/v1/decisions", "/v1/decisions/stream"} {
		ask(open, 400, "GET", path+"?ip=x", "")
		ask(broken, 503, "GET", path, "")
	}
}

// askTop asks for the busiest keys.
func askTop(ask asker, open, broken http.Handler) {
	ask(open, 200, "GET", "/v1/top", "")
	ask(open, 200, "GET", "/v1/top?rule=strict&limit=50", "")
	ask(open, 400, "GET", "/v1/top?rule=none", "")
	ask(open, 400, "GET", "/v1/top?limit=51", "")
	ask(broken, 503, "GET", "/v1/top", "")
}

// Every name of a problem is in the document.
func TestOpenAPIKnowsEveryProblem(t *testing.T) {
	d := describe(t)
	known := fmt.Sprint(d.doc.Components.Schemas["Problem"].Value.Properties["type"].Value.Enum)
	for _, name := range append(httpapi.ProblemTypes(), "urn:streamcounter:over-limit") {
		if !strings.Contains(known+" ", name) {
			t.Errorf("%s is not in the document", name)
		}
	}
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

// askLeases does the same for leases.
func askLeases(ask asker, open, broken http.Handler) {
	ask(open, 200, "POST", "/v1/check", `{"key":"hot:1"}`)
	ask(open, 200, "POST", "/v1/leases", `{"key":"hot:1","want":5}`)
	ask(open, 200, "POST", "/v1/leases", `{"key":"user:1","want":5}`) // its rule has no lease
	ask(open, 400, "POST", "/v1/leases", `{"key":"hot:1"}`)
	ask(open, 400, "POST", "/v1/leases", `{"key":"hot:1","want":-1}`)
	ask(open, 413, "POST", "/v1/leases", `{"key":"`+strings.Repeat("x", 70_000)+`"}`)
	ask(broken, 503, "POST", "/v1/leases", `{"key":"hot:1","want":5}`)
}

// askSettlements does the same for the ends of reservations.
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
