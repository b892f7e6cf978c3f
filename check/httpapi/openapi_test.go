package httpapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// openAPI is the document. kin-openapi is the one library at hand that validates answers against 3.1.
var openAPI = sync.OnceValues(func() (*openapi3.T, error) {
	return openapi3.NewLoader().LoadFromData(httpapi.OpenAPI)
})

// pathOf is the document's path of a request.
func pathOf(request string) (path string, params map[string]string) {
	for _, path := range []string{"/v1/keys/", "/v1/overrides/", "/v1/history/"} {
		if key, ok := strings.CutPrefix(request, path); ok {
			return path + "{key}", map[string]string{"key": key}
		}
	}
	if rest, ok := strings.CutPrefix(request, "/v1/reservations/"); ok {
		id, verb, _ := strings.Cut(rest, "/")
		return strings.TrimSuffix("/v1/reservations/{id}/"+verb, "/"), map[string]string{"id": id}
	}
	return request, nil
}

// wantDescribed compares an answer with the document. If the request succeeded, it compares the request too. Only
// what is not there need not be in the document.
func wantDescribed(t *testing.T, r *http.Request, body string, rec *httptest.ResponseRecorder) {
	t.Helper()
	doc, err := openAPI()
	testkit.Must(t, err)
	path, params := pathOf(r.URL.Path)
	what := fmt.Sprintf("%s %s %d", r.Method, path, rec.Code)
	item := doc.Paths.Value(path)
	if item == nil || item.GetOperation(r.Method) == nil {
		unknown := []int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusUnauthorized}
		if !slices.Contains(unknown, rec.Code) {
			t.Errorf("%s is not in the document", what)
		}
		return
	}
	in := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, QueryParams: r.URL.Query(),
		Route: &routers.Route{Spec: doc, Path: path, PathItem: item, Method: r.Method,
			Operation: item.GetOperation(r.Method)},
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc,
			IncludeResponseStatus: true, MultiError: true},
	}
	// The document describes events only as an array whose elements are all taken.
	taken := strings.HasPrefix(body, "[") && strings.Contains(rec.Body.String(), `"rejected":[]`)
	if rec.Code < 300 && (path != "/v1/events" || taken) {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		r.Header.Set("Content-Type", "application/json")
		if err := openapi3filter.ValidateRequest(r.Context(), in); err != nil {
			t.Errorf("%s: the request: %v", what, err)
		}
	}
	if err := openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: rec.Code, Header: rec.Header(),
		Body: io.NopCloser(bytes.NewReader(rec.Body.Bytes())), Options: in.Options,
	}); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// asked is what was asked of the document: "METHOD path status" → seen.
type asked struct {
	t    *testing.T
	doc  *openapi3.T
	seen map[string]bool
}

// slowBody is for a body that is not there at the deadline of the connection.
const slowBody = "slow"

// ask sends a request, expects a status, and compares the answer with the document.
func (d *asked) ask(h http.Handler, r *http.Request, body string, want int) {
	d.t.Helper()
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	if body == slowBody {
		r.Body = io.NopCloser(iotest.ErrReader(os.ErrDeadlineExceeded))
	}
	path, _ := pathOf(r.URL.Path)
	what := fmt.Sprintf("%s %s %d", r.Method, path, want)
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	if rec.Code != want {
		d.t.Errorf("%s: %d %s", what, rec.Code, rec.Body)
		return
	}
	wantDescribed(d.t, r, body, rec)
	d.seen[what] = true
}

// Every path, method and status of the document is asked for, here or in a story. Every answer is as the document
// says, and every route is in it. (TestStories compares the answers of the stories.)
func TestOpenAPI(t *testing.T) {
	doc, err := openAPI()
	testkit.Must(t, err)
	testkit.Must(t, doc.Validate(t.Context()))
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("the document is of %s", doc.OpenAPI)
	}
	d := &asked{t, doc, map[string]bool{}}
	strict := rule("strict", func(r *windows.Rule) { r.OnError = windows.OnErrorDeny }, tenAMinute.Windows...)
	w := newWorld(t, streamtest.AnyRedis(t), strict, hotRule)
	gone := newWorldWithin(t, timeout, streamtest.Connect(t, nobody), strict, hotRule)
	router := func(w *world, tokens *access.Tokens, ready error) *httpapi.Router {
		routes := w.server.Routes(func(context.Context) error { return ready })
		return httpapi.NewRouter(tokens, append(routes, httpapi.Route{Method: "GET", Path: "/metrics",
			Scope: access.ScopeRead, Serve: promhttp.HandlerFor(w.registry, promhttp.HandlerOpts{})})...)
	}
	open, broken := router(w, nil, nil), router(gone, nil, errors.New("Redis is away"))
	get := func(h http.Handler, path string, want int) { d.ask(h, httptest.NewRequest("GET", path, nil), "", want) }
	for _, path := range []string{"/openapi.json", "/metrics", "/healthz", "/readyz"} {
		get(open, path, 200)
	}
	get(broken, "/healthz", 200)
	wantStatus(t, put(t, w, "ip:192.0.2.1", `{"block":true}`), 200)
	for _, path := range []string{"/v1/decisions", "/v1/decisions/stream"} {
		get(open, path, 200)
		get(open, path+"?ip=x", 400)
	}
	withoutBouncers := router(sharing(t, w, strict), nil, nil)
	get(withoutBouncers, "/v1/decisions", 404)
	get(withoutBouncers, "/v1/decisions/stream", 404)
	d.askRoutes(open, router(w, newTokens(t), nil), broken)
	d.allSeen()
}

// askRoutes asks each route without a token, with one of another scope, as one who does not wait, with a body that is
// compressed, slow or too large, and without Redis.
func (d *asked) askRoutes(open, guarded, broken *httpapi.Router) {
	canceled, cancel := context.WithCancel(d.t.Context())
	cancel()
	other := map[access.Scope]string{access.ScopeCheck: reader, access.ScopeAppend: reader, access.ScopeRead: checker,
		access.ScopeAdmin: checker}
	bodies := map[string]string{"/v1/check": `{"key":"strict:1"}`, "/v1/events": `[{"key":"strict:1"}]`,
		"/v1/reservations": `{"key":"strict:1"}`, "/v1/leases": `{"key":"hot:1","want":5}`,
		"/v1/overrides/strict:1": `{"exempt":true}`}
	large := `{"key":"` + strings.Repeat("x", 70_000) + `"}`
	var routes []httpapi.Route
	for _, route := range open.Routes() {
		switch {
		case route.Path == "/v1/reservations/" && route.Method == "POST":
			routes = append(routes, httpapi.Route{Method: "POST", Path: route.Path + "0a-1/commit", Scope: route.Scope})
			route.Path += "0a-1/renew"
		case route.Path == "/v1/reservations/":
			route.Path += "0a-1"
		case strings.HasSuffix(route.Path, "/"):
			route.Path += "strict:1"
		}
		routes = append(routes, route)
	}
	for _, route := range routes {
		target, body := route.Path, ""
		path, _ := pathOf(route.Path)
		if d.doc.Paths.Value(path) == nil || d.doc.Paths.Value(path).GetOperation(route.Method) == nil {
			d.t.Errorf("%s %s is not in the document", route.Method, target)
			continue
		}
		statuses := d.doc.Paths.Value(path).GetOperation(route.Method).Responses
		if takesBody := route.Method == "POST" || route.Method == "PUT"; takesBody {
			body = bodies[route.Path]
			compressed := httptest.NewRequest(route.Method, target, nil)
			compressed.Header.Set("Content-Encoding", "gzip")
			d.ask(open, compressed, "{}", 415)
			d.ask(open, httptest.NewRequest(route.Method, target, nil), slowBody, 408)
			if path != "/v1/events" { // its limit is higher: events.txt
				d.ask(open, httptest.NewRequest(route.Method, target, nil), large, 413)
			}
		} else if path == "/v1/check" {
			target += "?key=strict:1"
		}
		if !route.Open {
			d.ask(guarded, httptest.NewRequest(route.Method, target, nil), "", 401)
			foreign := httptest.NewRequest(route.Method, target, nil)
			foreign.Header.Set("Authorization", "Bearer "+other[route.Scope])
			d.ask(guarded, foreign, "", 403)
		}
		if statuses.Value("499") != nil {
			d.ask(open, httptest.NewRequest(route.Method, target, nil).WithContext(canceled), body, 499)
		}
		if statuses.Value("503") != nil {
			d.ask(broken, httptest.NewRequest(route.Method, target, nil), body, 503)
		}
	}
}

// toldAnswer is the method, the path and the status of an answer in a story.
var toldAnswer = regexp.MustCompile(`> (\S+) ([^\s?]+).*\n(?:: .*\n)*< (\d+)`)

// allSeen reports what the document names and neither this test nor a story has seen.
func (d *asked) allSeen() {
	files, err := filepath.Glob("testdata/*.txt")
	testkit.Must(d.t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		testkit.Must(d.t, err)
		for _, m := range toldAnswer.FindAllStringSubmatch(string(text), -1) {
			path, _ := pathOf(m[2])
			d.seen[m[1]+" "+path+" "+m[3]] = true
		}
	}
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
}

// Every name of a problem is in the document.
func TestOpenAPIKnowsEveryProblem(t *testing.T) {
	doc, err := openAPI()
	testkit.Must(t, err)
	known := fmt.Sprint(doc.Components.Schemas["Problem"].Value.Properties["type"].Value.Enum)
	for _, name := range append(httpapi.ProblemTypes(), "urn:streamcounter:over-limit") {
		if !strings.Contains(known+" ", name) {
			t.Errorf("%s is not in the document", name)
		}
	}
}
