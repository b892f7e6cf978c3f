package httpmw_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/httpmw"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/internal/transport"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

const t0 = int64(1_700_000_000_000)

// guard throttles the keys that it has.
type guard map[string]api.Transition

func (g guard) Lookup(key string) (api.Transition, bool) { d, ok := g[key]; return d, ok }

// checker answers by a function, and records its requests.
type checker struct {
	asked  []api.CheckRequest
	answer func(api.CheckRequest) (api.CheckAnswer, error)
}

func (c *checker) Check(_ context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	c.asked = append(c.asked, req)
	return c.answer(req)
}

func answers(a api.CheckAnswer, err error) *checker {
	return &checker{answer: func(api.CheckRequest) (api.CheckAnswer, error) { return a, err }}
}

// service is a handler behind the middleware, which counts what reaches it. It gets the server's own writer, with all
// that it can do.
func service(t *testing.T, c httpmw.Config) (http.Handler, *int) {
	t.Helper()
	if c.Key == nil {
		c.Key = httpmw.Header("X-Key", "user:")
	}
	limit, err := httpmw.New(c)
	testkit.Must(t, err)
	reached := new(int)
	return limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		*reached++
		if _, ok := w.(*httptest.ResponseRecorder); !ok {
			t.Errorf("the handler got a %T", w)
		}
	})), reached
}

func get(h http.Handler, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", "/orders", nil)
	r.Header.Set("X-Key", "1")
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var minute = []api.WindowState{{Limit: 10, WindowMs: 60_000, Used: 4, Remaining: 6, EmptyMs: 50_500,
	NextFreeMs: 20_500}}

func TestAdmitted(t *testing.T) {
	c := answers(api.CheckAnswer{Allowed: true, Rule: "api", Key: "user:1", Windows: minute, Source: api.SourceRedis},
		nil)
	h, reached := service(t, httpmw.Config{Checker: c, Cost: func(*http.Request) int64 { return 3 }})
	w := get(h)
	if w.Code != 200 || *reached != 1 || len(c.asked) != 1 || c.asked[0].Key != "user:1" || c.asked[0].Cost != 3 {
		t.Errorf("%d, reached %d times, asked %+v", w.Code, *reached, c.asked)
	}
	wantHeader(t, w, map[string]string{
		"RateLimit-Policy": `"api-1m";q=10;w=60`, "RateLimit": `"api-1m";r=6;t=21`, "X-RateLimit-Limit": "10",
		"X-RateLimit-Remaining": "6", "X-RateLimit-Reset": "21", "Retry-After": "",
	})
}

func wantHeader(t *testing.T, w *httptest.ResponseRecorder, want map[string]string) {
	t.Helper()
	for name, v := range want {
		if got := w.Header().Get(name); got != v {
			t.Errorf("%s: %q, want %q", name, got, v)
		}
	}
}

func TestDenied(t *testing.T) {
	a := api.CheckAnswer{Rule: "api", Key: "user:secret", Cost: 1, Windows: []api.WindowState{{Limit: 10,
		WindowMs: 60_000, Used: 10, EmptyMs: 50_000, NextFreeMs: 1500}}, RetryAfterMs: 1500, Source: api.SourceRedis}
	h, reached := service(t, httpmw.Config{Checker: answers(a, nil)})
	w := get(h)
	if w.Code != 429 || *reached != 0 || w.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d %v, reached %d times", w.Code, w.Header(), *reached)
	}
	wantHeader(t, w, map[string]string{"RateLimit": `"api-1m";r=0;t=2`, "Retry-After": "2",
		"X-RateLimit-Remaining": "0"})
	var p struct {
		api.Problem
		RetryAfterMs int64 `json:"retry_after_ms"`
	}
	testkit.Must(t, json.Unmarshal(w.Body.Bytes(), &p))
	if p.Type != "urn:streamcounter:over-limit" || p.Status != 429 || p.RetryAfterMs != 1500 ||
		strings.Contains(w.Body.String(), "secret") {
		t.Errorf("%s, want the problem, the wait, and not the key", w.Body)
	}
	h, _ = service(t, httpmw.Config{Checker: answers(a, nil), Denied: func(w http.ResponseWriter, _ *http.Request,
		a api.CheckAnswer) {
		http.Error(w, a.Rule, http.StatusForbidden)
	}})
	if w := get(h); w.Code != 403 || w.Body.String() != "api\n" || w.Header().Get("Retry-After") != "2" {
		t.Errorf("an answer of one's own: %d %q %v", w.Code, w.Body, w.Header())
	}
}

// The guard comes first, and a key that it throttles costs no round trip.
func TestGuardFirst(t *testing.T) {
	g := guard{"user:1": {Rule: "api", Key: "user:1", Limit: 10, WindowMs: 60_000, Used: 12, UntilMs: t0 + 30_000}}
	c := answers(api.CheckAnswer{Allowed: true}, nil)
	now := t0 + 1000
	h, reached := service(t, httpmw.Config{Guard: g, Checker: c, Now: func() int64 { return now }})
	w := get(h)
	if w.Code != 429 || len(c.asked) != 0 {
		t.Errorf("%d, asked %v", w.Code, c.asked)
	}
	wantHeader(t, w, map[string]string{"Retry-After": "29", "RateLimit-Policy": `"api-1m";q=10;w=60`,
		"RateLimit": `"api-1m";r=0;t=29`})
	g["user:slot"] = api.Transition{Rule: "job", Key: "user:slot", Limit: 2, WindowMs: 60_000, Used: 2,
		UntilMs: t0 + 30_000, InFlight: true}
	inFlight := get(h, func(r *http.Request) { r.Header.Set("X-Key", "slot") })
	wantHeader(t, inFlight, map[string]string{"RateLimit-Policy": `"job-in-flight";q=2`})
	now = t0 + 31_000 // the end is on its way
	if w := get(h); w.Code != 429 || w.Header().Get("Retry-After") != "1" {
		t.Errorf("%d, Retry-After %s, want 1", w.Code, w.Header().Get("Retry-After"))
	}
	if w := get(h, func(r *http.Request) { r.Header.Set("X-Key", "2") }); w.Code != 200 || len(c.asked) != 1 ||
		*reached != 1 {
		t.Errorf("%d, asked %v: another key is checked", w.Code, c.asked)
	}
	// Without a Checker, the guard lets all other keys pass.
	h, _ = service(t, httpmw.Config{Guard: g})
	if w := get(h, func(r *http.Request) { r.Header.Set("X-Key", "2") }); w.Code != 200 {
		t.Errorf("%d", w.Code)
	}
}

func TestWhatIsNotCounted(t *testing.T) {
	g := guard{"user:1": {Rule: "api", Key: "user:1", UntilMs: t0}}
	c := answers(api.CheckAnswer{}, nil) // denies
	h, reached := service(t, httpmw.Config{Guard: g, Checker: c, Skip: []func(
		*http.Request) bool{httpmw.Paths("/healthz", "/static/"), httpmw.Methods("OPTIONS")}})
	path := func(p string) func(*http.Request) { return func(r *http.Request) { r.URL.Path = p } }
	for _, free := range []func(*http.Request){
		path("/healthz"), path("/static/a.css"), path("/static"),
		func(r *http.Request) { r.Method = "OPTIONS" },
		func(r *http.Request) { r.Header.Del("X-Key") },
	} {
		if w := get(h, free); w.Code != 200 {
			t.Errorf("%d, want it to pass", w.Code)
		}
	}
	for _, p := range []string{"/healthz/../orders", "/healthz2", "/healthz/x", "/static/../orders", "/staticx",
		"//orders"} {
		if w := get(h, path(p)); w.Code != 429 {
			t.Errorf("%s: %d, want it limited", p, w.Code)
		}
	}
	if *reached != 5 || len(c.asked) != 0 {
		t.Errorf("reached %d times, asked %v", *reached, c.asked)
	}
	// A request that costs nothing is not checked, but a throttled key is not served even then.
	h, _ = service(t, httpmw.Config{Guard: g, Checker: c, Cost: func(*http.Request) int64 { return 0 }})
	if a, b := get(h), get(h, func(r *http.Request) { r.Header.Set("X-Key", "2") }); a.Code != 429 || b.Code != 200 ||
		len(c.asked) != 0 {
		t.Errorf("%d and %d, asked %v", a.Code, b.Code, c.asked)
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer api.CheckAnswer
		err    error
		status int
		typ    string
	}{
		{"denied by policy", api.CheckAnswer{Source: api.SourcePolicy}, fmt.Errorf("%w: away", api.ErrUnavailable),
			503, "unavailable"},
		{"a transport without a policy", api.CheckAnswer{}, transport.Lost(errors.New("away")), 503, "unavailable"},
		{"bad key", api.CheckAnswer{}, api.ErrBadKey, 400, "bad-key"},
		{"bad cost", api.CheckAnswer{}, api.ErrBadCount, 400, "bad-count"},
		{"cost above the limit", api.CheckAnswer{}, api.ErrCostExceedsLimit, 400, "cost-exceeds-limit"},
		{"allowed by policy, with a wrong token", api.CheckAnswer{Allowed: true, Source: api.SourcePolicy},
			api.ErrUnauthenticated, 200, ""},
	} {
		var told error
		h, _ := service(t, httpmw.Config{Checker: answers(c.answer, c.err),
			OnError: func(_ *http.Request, err error) { told = err }})
		w := get(h)
		if w.Code != c.status || told != c.err || c.typ != "" && !strings.Contains(w.Body.String(),
			`"urn:streamcounter:`+c.typ+`"`) {
			t.Errorf("%s: %d %s, told %v; want %d %s", c.name, w.Code, w.Body, told, c.status, c.typ)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []httpmw.Config{{}, {Key: httpmw.Header("a", "")}, {Guard: guard{}}} {
		if _, err := httpmw.New(c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

// A request without a key passes, unless one is required. Its error is for the log, not for the caller.
func TestRequireKey(t *testing.T) {
	for _, required := range []bool{false, true} {
		var noted error
		c := answers(api.CheckAnswer{Allowed: true}, nil)
		h, reached := service(t, httpmw.Config{Checker: c, RequireKey: required,
			OnError: func(_ *http.Request, err error) { noted = err }})
		w := get(h, func(r *http.Request) { r.Header.Del("X-Key") })
		if refused := w.Code == 400 && *reached == 0 && errors.Is(noted, api.ErrBadKey); refused != required {
			t.Errorf("required %t: %d, reached %d times, error %v", required, w.Code, *reached, noted)
		}
		if required && !strings.Contains(w.Body.String(), "The request has no key") || len(c.asked) != 0 {
			t.Errorf("required %t: %s, asked %v", required, w.Body, c.asked)
		}
	}
}
