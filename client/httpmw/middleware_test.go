package httpmw_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/client/httpmw"
	"github.com/streamcounter/streamcounter/internal/gate/gatetest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/internal/transport"
)

const t0 = int64(1_700_000_000_000)

type (
	guard   = gatetest.Guard
	checker = gatetest.Checker
)

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
	c := &checker{Answer: api.CheckAnswer{Allowed: true, Rule: "api", Key: "user:1", Windows: minute,
		Source: api.SourceRedis}}
	h, reached := service(t, httpmw.Config{Checker: c, Cost: func(*http.Request) int64 { return 3 }})
	w := get(h)
	if w.Code != 200 || *reached != 1 || len(c.Asked) != 1 || c.Asked[0].Key != "user:1" || c.Asked[0].Cost != 3 {
		t.Errorf("%d, reached %d times, asked %+v", w.Code, *reached, c.Asked)
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
	h, reached := service(t, httpmw.Config{Checker: &checker{Answer: a}})
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
	h, _ = service(t, httpmw.Config{Checker: &checker{Answer: a}, Denied: func(w http.ResponseWriter, _ *http.Request,
		a api.CheckAnswer) {
		http.Error(w, a.Rule, http.StatusForbidden)
	}})
	if w := get(h); w.Code != 403 || w.Body.String() != "api\n" || w.Header().Get("Retry-After") != "2" {
		t.Errorf("an answer of one's own: %d %q %v", w.Code, w.Body, w.Header())
	}
}

// The guard comes first, and a key that it throttles costs no round trip.
func TestGuardFirst(t *testing.T) {
	g := guard{"user:1": {Rule: "api", Key: "user:1", Limit: 10, WindowMs: 60_000, Used: 12, UntilMs: t0 + 30_000},
		"user:slot": {Rule: "job", Key: "user:slot", Limit: 2, WindowMs: 60_000, Used: 2, UntilMs: t0 + 30_000,
			InFlight: true}}
	c := &checker{Answer: api.CheckAnswer{Allowed: true}}
	now := t0 + 1000
	h, reached := service(t, httpmw.Config{Guard: g, Checker: c, Now: func() int64 { return now }})
	of := func(key string) func(*http.Request) { return func(r *http.Request) { r.Header.Set("X-Key", key) } }
	wantHeader(t, get(h), map[string]string{"Retry-After": "29", "RateLimit-Policy": `"api-1m";q=10;w=60`,
		"RateLimit": `"api-1m";r=0;t=29`})
	wantHeader(t, get(h, of("slot")), map[string]string{"RateLimit-Policy": `"job-in-flight";q=2`})
	now = t0 + 31_000 // the end is on its way
	if w := get(h); w.Code != 429 || w.Header().Get("Retry-After") != "1" || len(c.Asked) != 0 {
		t.Errorf("%d, Retry-After %s, want 1, asked %v", w.Code, w.Header().Get("Retry-After"), c.Asked)
	}
	if w := get(h, of("2")); w.Code != 200 || len(c.Asked) != 1 || *reached != 1 {
		t.Errorf("%d, asked %v: another key is checked", w.Code, c.Asked)
	}
	// Without a Checker, the guard lets all other keys pass.
	h, _ = service(t, httpmw.Config{Guard: g})
	if w := get(h, of("2")); w.Code != 200 {
		t.Errorf("%d", w.Code)
	}
}

// The answer of a guard is like that of a server: of a block, its end if the decision has it, and no window; of a
// throttle, not before when, as the guard knows the end for one unit alone.
func TestTheGuardPromisesOnlyWhatItKnows(t *testing.T) {
	const day, hour = 86_400_000, 3_600_000
	block := api.Transition{Rule: api.OverrideRule, Key: "user:1", Reason: "abuse", UntilMs: t0 + hour,
		ExpiresMs: t0 + hour + 5000}
	longBlock := block
	longBlock.UntilMs, longBlock.ExpiresMs = t0+day, t0+day+hour+5000 // it ends later, or never
	throttle := api.Transition{Rule: "api", Key: "user:1", Limit: 10, WindowMs: 60_000, UntilMs: t0 + hour,
		ExpiresMs: t0 + hour + 5000}
	asBlock := func(ms int64) api.CheckAnswer {
		return api.CheckAnswer{Rule: "override", Key: "user:1", Cost: 5, RetryAfterMs: ms, Source: "override",
			Windows: []api.WindowState{}, ByOperator: api.ByOperator{Override: "block", Reason: "abuse"}}
	}
	for _, c := range []struct {
		decision          api.Transition
		want              api.CheckAnswer
		retryAfter, limit string
	}{
		{block, asBlock(hour), "3600", ""},
		{longBlock, asBlock(-1), "", ""},
		{throttle, api.CheckAnswer{Rule: "api", Key: "user:1", Cost: 5, RetryAfterMs: hour, Source: "cache",
			Windows: []api.WindowState{{Limit: 10, WindowMs: 60_000, Remaining: 10, EmptyMs: hour, NextFreeMs: hour}}},
			"3600", "10"},
	} {
		var got api.CheckAnswer
		h, _ := service(t, httpmw.Config{Guard: guard{"user:1": c.decision}, Now: func() int64 { return t0 },
			Cost:   func(*http.Request) int64 { return 5 },
			Denied: func(_ http.ResponseWriter, _ *http.Request, a api.CheckAnswer) { got = a }})
		wantHeader(t, get(h), map[string]string{"Retry-After": c.retryAfter, "X-RateLimit-Limit": c.limit})
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}

func TestWhatIsNotCounted(t *testing.T) {
	g := guard{"user:1": {Rule: "api", Key: "user:1", UntilMs: t0}}
	c := &checker{Answer: api.CheckAnswer{}} // denies
	h, reached := service(t, httpmw.Config{Guard: g, Checker: c, Skip: []func(
		*http.Request) bool{httpmw.Paths("/healthz", "/static/"), httpmw.Methods("OPTIONS")}})
	for path, status := range map[string]int{"/healthz": 200, "/static/a.css": 200, "/static": 200,
		"/healthz/../orders": 429, "/healthz2": 429, "/healthz/x": 429, "/static/../orders": 429, "/staticx": 429,
		"/orders/../healthz": 429, `/orders/..\static/`: 429, "//orders": 429, "//healthz": 200} {
		if w := get(h, func(r *http.Request) { r.URL.Path = path }); w.Code != status {
			t.Errorf("%s: %d, want %d", path, w.Code, status)
		}
	}
	if w := get(h, func(r *http.Request) { r.Method = "OPTIONS" }); w.Code != 200 {
		t.Errorf("%d, want it to pass", w.Code)
	}
	if *reached != 5 || len(c.Asked) != 0 {
		t.Errorf("reached %d times, asked %v", *reached, c.Asked)
	}
	// A request that costs nothing is not checked, but a throttled key is not served even then.
	h, _ = service(t, httpmw.Config{Guard: g, Checker: c, Cost: func(*http.Request) int64 { return 0 }})
	if a, b := get(h), get(h, func(r *http.Request) { r.Header.Set("X-Key", "2") }); a.Code != 429 || b.Code != 200 ||
		len(c.Asked) != 0 {
		t.Errorf("%d and %d, asked %v", a.Code, b.Code, c.Asked)
	}
}

// Each error is reported. A request with the empty key never passes, even if there is only a guard; one without a key
// passes, unless one is required.
func TestErrors(t *testing.T) {
	answers := func(source api.Source, err error) httpmw.Config {
		return httpmw.Config{Checker: &checker{Answer: api.CheckAnswer{Source: source}, Err: err}}
	}
	keyed := func(ok, required bool) httpmw.Config {
		return httpmw.Config{Guard: guard{}, RequireKey: required,
			Key: func(*http.Request) (string, bool) { return "", ok }}
	}
	allowed := &checker{Answer: api.CheckAnswer{Allowed: true, Source: api.SourcePolicy}, Err: api.ErrUnauthenticated}
	refused := fmt.Errorf("%w: %w", api.ErrUnavailable, api.ErrForbidden)
	for name, c := range map[string]struct {
		httpmw.Config
		status int
		says   string
	}{
		"denied by policy":        {answers(api.SourcePolicy, api.ErrUnavailable), 503, ":unavailable"},
		"without a policy":        {answers("", transport.Lost(errors.New("away"))), 503, ":unavailable"},
		"bad key":                 {answers("", api.ErrBadKey), 400, ":bad-key"},
		"bad cost":                {answers("", api.ErrBadCount), 400, ":bad-count"},
		"cost above the limit":    {answers("", api.ErrCostExceedsLimit), 400, ":cost-exceeds-limit"},
		"a rule that wants slots": {answers("", api.ErrNeedsReservation), 500, ":internal"},
		"no slots":                {answers("", client.ErrCannotReserve), 500, ":internal"},
		"a wrong token":           {answers("", api.ErrForbidden), 500, ":internal"},
		"and the policy denies":   {answers(api.SourcePolicy, refused), 503, ":unavailable"},
		"and its own count":       {answers(api.SourceLocal, api.ErrForbidden), 429, ":over-limit"},
		"and the policy allows":   {httpmw.Config{Checker: allowed}, 200, ""},
		"the empty key":           {keyed(true, false), 400, ":bad-key"},
		"no key":                  {keyed(false, false), 200, ""},
		"no key, one is required": {keyed(false, true), 400, "The request has no key"},
	} {
		var told error
		c.OnError = func(_ *http.Request, err error) { told = err }
		h, reached := service(t, c.Config)
		w := get(h)
		if w.Code != c.status || (*reached == 1) != (w.Code == 200) || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s: %d %s, reached %d times, want %d %s", name, w.Code, w.Body, *reached, c.status, c.says)
		}
		if fake, ok := c.Checker.(*checker); ok && told != fake.Err || !ok && (told == nil) != (w.Code == 200) {
			t.Errorf("%s: told %v", name, told)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []httpmw.Config{{}, {Key: httpmw.Header("a", "")}, {Guard: guard{}},
		{Key: httpmw.Header("a", ""), Slots: optional{}, Checker: &checker{}}} {
		if _, err := httpmw.New(c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

// holding puts the middleware before a handler. told receives its errors.
func holding(t *testing.T, s *gatetest.OneSlot, told func(error), handler http.HandlerFunc) http.Handler {
	t.Helper()
	limit, err := httpmw.New(httpmw.Config{Slots: s.Client(t), Key: httpmw.Header("X-Key", ""),
		OnError: func(_ *http.Request, err error) { told(err) }})
	testkit.Must(t, err)
	return limit(handler)
}

// While a request is served no other one of its key is. Then its slot is free, also if its handler panics or its caller
// hangs up.
func TestASlotForEachRequest(t *testing.T) {
	s := &gatetest.OneSlot{TTLMs: 60_000}
	told := func(err error) { t.Error(err) }
	second := holding(t, s, told, func(http.ResponseWriter, *http.Request) { t.Error("two at once") })
	ctx, hangUp := context.WithCancel(t.Context())
	for name, handler := range map[string]http.HandlerFunc{
		"a second one": func(http.ResponseWriter, *http.Request) {
			if w := get(second); w.Code != 429 || w.Header().Get("Retry-After") != "2" {
				t.Errorf("a second one: %d %v", w.Code, w.Header())
			}
		},
		"a panic": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"the caller hangs up": func(_ http.ResponseWriter, r *http.Request) {
			hangUp()
			<-r.Context().Done()
		},
	} {
		func() {
			defer func() {
				if panicked := recover() != nil; panicked != (name == "a panic") || s.Taken.Load() {
					t.Errorf("%s: panicked %t, its slot is taken: %t", name, panicked, s.Taken.Load())
				}
			}()
			get(holding(t, s, told, handler), func(r *http.Request) {
				if name == "the caller hangs up" {
					*r = *r.WithContext(ctx)
				}
			})
		}()
	}
	h := holding(t, s, told, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	if w := get(h, func(r *http.Request) { r.Header.Set("X-Key", "nobody") }); w.Code != 204 {
		t.Errorf("a key without a rule: %d", w.Code)
	}
}

// The context of the request ends when its slot is lost, and OnError is called.
func TestALostSlotEndsTheRequest(t *testing.T) {
	var heard error
	get(holding(t, &gatetest.OneSlot{TTLMs: 30}, func(err error) { heard = err },
		func(_ http.ResponseWriter, r *http.Request) {
			if <-r.Context().Done(); !errors.Is(context.Cause(r.Context()), client.ErrSlotLost) {
				t.Errorf("it ended with %v", context.Cause(r.Context()))
			}
		}))
	if !errors.Is(heard, api.ErrReservationExpired) {
		t.Errorf("heard of %v", heard)
	}
}

// optional lets requests pass without a slot if there is no answer.
type optional struct{}

func (optional) Acquire(context.Context, string, int64) (*client.Slot, error) { return nil, nil }

func TestSlotsThatNobodyGives(t *testing.T) {
	var heard error
	h := holding(t, &gatetest.OneSlot{Away: true}, func(err error) { heard = err }, http.NotFound)
	if w := get(h); w.Code != 503 || !errors.Is(heard, api.ErrUnavailable) {
		t.Errorf("%d, heard of %v, want 503", w.Code, heard)
	}
	limit, err := httpmw.New(httpmw.Config{Slots: optional{}, Key: httpmw.Header("X-Key", "")})
	testkit.Must(t, err)
	if w := get(limit(http.NotFoundHandler())); w.Code != 404 {
		t.Errorf("%d, want the handler's 404", w.Code)
	}
}
