package httpapi_test

import (
	"context"
	"encoding/json"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/activity"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/crowdsec"
	"github.com/streamcounter/streamcounter/internal/overrides"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// The tokens of access's example file.
const checker, appender, reader, operator = "checker-0123456789", "appender-0123456789", "reader-0123456789abc",
	"operator-0123456789"

func newTokens(t testing.TB) *access.Tokens {
	t.Helper()
	tokens, err := access.NewTokens("../access/testdata/tokens.yml", prometheus.NewRegistry(), nil)
	testkit.Must(t, err)
	return tokens
}

func newExtractors(t testing.TB) *access.Extractors {
	t.Helper()
	x, err := access.NewExtractors("../access/testdata/extractors.yml", nil)
	testkit.Must(t, err)
	return x
}

// world is a service over one Redis, under a prefix of its own, with a clock
// that stands still until it is moved.
type world struct {
	redis    redis.UniversalClient
	keys     *stream.Keys
	clock    *atomic.Int64
	service  *check.Service
	server   *httpapi.Server
	handler  http.Handler
	registry *prometheus.Registry

	metrics   *httpapi.Metrics
	overrides *overrides.All
	activity  *activity.Recorder

	described bool            // its answers are compared with openapi.json
	ctx       context.Context // of its requests; nil: that of the test
}

// Deadlines of a check: one that the test lets pass, and one that must not pass, however busy the machine is.
const (
	timeout  = 200 * time.Millisecond
	patience = time.Minute
)

func newWorld(t testing.TB, c redis.UniversalClient, rules ...*windows.Rule) *world {
	t.Helper()
	return newWorldWithin(t, patience, c, rules...)
}

func newWorldWithin(t testing.TB, timeout time.Duration, c redis.UniversalClient, rules ...*windows.Rule) *world {
	t.Helper()
	return newWorldWith(t, c, func(c *check.Config, h *httpapi.Config) {
		c.Timeout, h.AppendTimeout = timeout, timeout
	}, rules...)
}

// newWorldWith makes one whose service is configured otherwise.
func newWorldWith(t testing.TB, c redis.UniversalClient, change func(*check.Config, *httpapi.Config),
	rules ...*windows.Rule) *world {
	t.Helper()
	keys, err := stream.NewKeys(streamtest.Prefix(t), 16)
	testkit.Must(t, err)
	w := &world{redis: c, keys: keys, clock: &atomic.Int64{}}
	w.clock.Store(1_700_000_000_000)
	w.start(t, change, rules...)
	return w
}

// sharing returns another server over the same keys and clock.
func sharing(t testing.TB, w *world, rules ...*windows.Rule) *world {
	t.Helper()
	other := &world{redis: w.redis, keys: w.keys, clock: w.clock}
	other.start(t, func(_ *check.Config, h *httpapi.Config) { h.Bouncers = nil }, rules...)
	testkit.Must(t, other.overrides.Poll(t.Context()))
	return other
}

// start makes the server.
func (w *world) start(t testing.TB, change func(*check.Config, *httpapi.Config), rules ...*windows.Rule) {
	t.Helper()
	c := w.redis
	w.registry = prometheus.NewRegistry()
	log, err := stream.NewLog(c, w.keys, time.Minute)
	testkit.Must(t, err)
	loaded, err := windows.NewRules(rules)
	testkit.Must(t, err)
	counter := counters.New(c, w.keys)
	counter.Now = w.clock.Load
	w.overrides = counter.NewOverrides(nil)
	decides := check.Config{Counter: counter, Rules: windows.Under(w.overrides, windows.Fixed(loaded).Rules),
		Metrics: check.NewMetrics(w.registry), Timeout: patience}
	serves := httpapi.Config{Log: log, Keys: w.keys, Metrics: httpapi.NewMetrics(w.registry), AppendTimeout: patience}
	recorder := activity.NewRecorder(activity.Config{Redis: c, Keys: w.keys, Process: "serve test",
		Now: func() time.Time { return time.UnixMilli(w.clock.Load()) }})
	decides.Activity = recorder
	serves.Activity = func(ctx context.Context) (activity.Activity, error) {
		if err := c.HSet(ctx, w.keys.Processes(), "serve test", "announced").Err(); err != nil {
			return activity.Activity{}, err
		}
		return activity.Gather(ctx, c, w.keys)
	}
	w.activity = recorder
	serves.Bouncers = crowdsec.NewFeed(crowdsec.Config{
		Throttled: func(ctx context.Context) iter.Seq2[api.Throttled, error] { return w.service.AllThrottled(ctx) },
		Rules:     []string{"api", "login"}, Now: w.clock.Load})
	change(&decides, &serves)
	w.service, err = check.NewService(decides)
	testkit.Must(t, err)
	serves.Checks, w.metrics = w.service, serves.Metrics
	w.server, err = httpapi.NewServer(serves)
	testkit.Must(t, err)
	w.handler = httpapi.NewRouter(nil, w.server.Routes(nil)...)
}

func (w *world) advance(d time.Duration) { w.clock.Add(d.Milliseconds()) }

// rule matches "name:*" with windows of the limits and spans given in turn.
func rule(name string, change func(*windows.Rule), ws ...windows.Window) *windows.Rule {
	r := &windows.Rule{Name: name, Match: "*" + name + ":*", Windows: ws}
	if change != nil {
		change(r)
	}
	return r
}

// answer is the answer to a request.
type answer struct {
	status int
	header http.Header
	body   map[string]any
	text   string
}

func (a answer) str(field string) string { s, _ := a.body[field].(string); return s }

// num returns a number of the body, -1 if it is not a number.
func (a answer) num(field string) int64 {
	if n, ok := a.body[field].(float64); ok {
		return int64(n)
	}
	return -1
}

// do sends a request as it is: target is what comes after the method on the wire. It also tests what is true for
// every answer.
func (w *world) do(t *testing.T, method, target, body string, headers ...string) answer {
	t.Helper()
	rec := httptest.NewRecorder()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	if w.ctx != nil {
		r = r.WithContext(w.ctx)
	}
	for _, h := range headers {
		switch name, value, _ := strings.Cut(h, ": "); name {
		case "Peer":
			r.RemoteAddr = value
		case "Local":
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey,
				net.TCPAddrFromAddrPort(netip.MustParseAddrPort(value))))
		case "Host":
			r.Host = value
		default:
			r.Header.Add(name, value)
		}
	}
	w.handler.ServeHTTP(rec, r)
	a := answer{status: rec.Code, header: rec.Header(), text: rec.Body.String()}
	_ = json.Unmarshal(rec.Body.Bytes(), &a.body) // a list has no fields
	if method != http.MethodHead && !json.Valid(rec.Body.Bytes()) {
		t.Fatalf("%s %s answers no JSON: %q", method, target, a.text)
	}
	if w.described && method != http.MethodHead {
		wantDescribed(t, r, body, rec)
	}
	kind := a.header.Get("Content-Type")
	switch {
	case a.status < 400 && kind != "application/json", a.status >= 400 && kind != "application/problem+json":
		t.Errorf("%s %s: %d with content type %q", method, target, a.status, kind)
	case a.status >= 400 && (a.str("type") == "" || a.str("title") == "" || a.str("detail") == "" ||
		a.num("status") != int64(a.status)):
		t.Errorf("%s %s: %d is no full problem: %s", method, target, a.status, a.text)
	}
	return a
}

func (w *world) get(t *testing.T, key string, more ...string) answer {
	t.Helper()
	return w.do(t, "GET", "/v1/check?"+strings.Join(append(more, "key="+url.QueryEscape(key)), "&"), "")
}

func (w *world) post(t *testing.T, body string, headers ...string) answer {
	t.Helper()
	return w.do(t, "POST", "/v1/check", body, headers...)
}

// used returns what a key has used of its first window.
func (w *world) used(t *testing.T, key string) int64 {
	t.Helper()
	a := w.do(t, "GET", "/v1/keys/"+url.PathEscape(key), "")
	ws, _ := a.body["windows"].([]any)
	if len(ws) == 0 {
		t.Fatalf("%s: %s", key, a.text)
	}
	n, _ := ws[0].(map[string]any)["used"].(float64)
	return int64(n)
}

func wantStatus(t *testing.T, a answer, status int) {
	t.Helper()
	if a.status != status {
		t.Errorf("status %d, want %d: %s", a.status, status, a.text)
	}
}

// wantProblem expects an error of ours: its name and a part of what it says.
func wantProblem(t *testing.T, a answer, status int, name, says string) {
	t.Helper()
	if a.status != status || a.str("type") != "urn:streamcounter:"+name || !strings.Contains(a.str("detail"), says) {
		t.Errorf("%d %s, want %d, %s and a detail with %q", a.status, a.text, status, name, says)
	}
}

var tenAMinute = rule("user", nil, windows.Window{Limit: 10, Per: time.Minute})

func (w *world) reserve(t *testing.T, body string) answer {
	t.Helper()
	return w.do(t, http.MethodPost, "/v1/reservations", body)
}
