package httpapi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// withOverrides gives a world whose service has overrides.
func withOverrides(t *testing.T, w *world, rules ...*windows.Rule) *world {
	t.Helper()
	return sharing(t, w, rules...)
}

// sharing gives another server over the same keys and clock.
func sharing(t *testing.T, w *world, rules ...*windows.Rule) *world {
	t.Helper()
	other := &world{redis: w.redis, keys: w.keys, registry: w.registry}
	counter := windows.NewRedis(w.redis, w.keys)
	counter.Now = w.clock.Load
	loaded, err := windows.NewRules(rules)
	testkit.Must(t, err)
	other.overrides = windows.NewOverrides(counter, nil)
	testkit.Must(t, other.overrides.Load(t.Context()))
	other.service, err = check.NewService(check.Config{Counter: counter, Rules: windows.Fixed(loaded).Rules,
		Overrides: other.overrides, Timeout: patience, Denials: 1000})
	testkit.Must(t, err)
	other.server, err = httpapi.NewServer(httpapi.Config{Checks: other.service, Log: w.log, Metrics: w.metrics,
		AppendTimeout: patience})
	testkit.Must(t, err)
	other.handler = other.server.Handler(nil)
	return other
}

func put(t *testing.T, w *world, target, body string) answer {
	t.Helper()
	return w.do(t, "PUT", "/v1/overrides/"+url.PathEscape(target), body)
}

// onOverrides runs a test with two servers over one Redis, the embedded and a real one.
func onOverrides(t *testing.T, test func(t *testing.T, w, a, b *world), rules ...*windows.Rule) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		test(t, w, sharing(t, w, rules...), sharing(t, w, rules...))
	}, rules...)
}

var gold = &windows.Rule{Name: "gold", Windows: []windows.Window{{Limit: 100, Per: time.Minute}}}

// outbox gives what waits to be published: state rule key reason.
func (w *world) outbox(t *testing.T, key string) []string {
	t.Helper()
	entries, err := w.redis.XRange(t.Context(), w.keys.Outbox(w.keys.Partition(key)), "-", "+").Result()
	testkit.Must(t, err)
	var out []string
	for _, e := range entries {
		if e.Values["key"] == key && (e.Values["state"] == "throttled" || e.Values["state"] == "released") {
			line := e.Values["state"].(string) + " " + e.Values["rule"].(string)
			if reason, _ := e.Values["reason"].(string); reason != "" {
				line += " " + reason
			}
			if strings.Contains(e.Values["flags"].(string), "r") {
				line += " renewed"
			}
			out = append(out, line)
		}
	}
	return out
}

func wantOutbox(t *testing.T, w *world, key string, want ...string) {
	t.Helper()
	if got := w.outbox(t, key); strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Errorf("outbox of %s: %q, want %q", key, got, want)
	}
}

func TestABlockedKeyIsDeniedAndChargesNothing(t *testing.T) {
	onOverrides(t, func(t *testing.T, w, a, b *world) {
		wantStatus(t, a.get(t, "user:1", "cost=3"), 200)
		set := put(t, a, "user:1", `{"block":true,"for":"1h","reason":"abuse"}`)
		wantStatus(t, set, 200)
		until := w.clock.Load() + time.Hour.Milliseconds()
		if set.num("until_ms") != until || set.num("at_ms") != w.clock.Load() || set.str("key") != "user:1" {
			t.Errorf("set: %s", set.text)
		}
		testkit.Must(t, b.overrides.Poll(t.Context()))
		for _, server := range []*world{a, b} {
			denied := server.get(t, "user:1")
			wantStatus(t, denied, 429)
			if denied.num("retry_after_ms") != time.Hour.Milliseconds() || denied.str("override") != "block" ||
				denied.str("reason") != "abuse" || denied.str("source") != "override" ||
				denied.str("rule") != "override" || denied.header.Get("Retry-After") != "3600" {
				t.Errorf("denied: %v %s", denied.header, denied.text)
			}
			all := server.post(t, `{"checks":[{"key":"user:1"},{"key":"user:2"}]}`)
			wantStatus(t, all, 429)
			if server.used(t, "user:1") != 3 || server.used(t, "user:2") != 0 {
				t.Error("a denied check charged")
			}
			wantStatus(t, server.get(t, "nobody"), 200)
		}
		happened := b.post(t, `{"key":"user:1","cost":2,"mode":"charge"}`)
		if happened.status != 200 || happened.body["allowed"] != false || happened.body["charged"] != true ||
			a.used(t, "user:1") != 5 {
			t.Error(happened.text)
		}
		wantOutbox(t, w, "user:1", "throttled override abuse")

		w.advance(time.Hour - time.Millisecond)
		wantStatus(t, b.get(t, "user:1"), 429)
		w.advance(time.Millisecond) // nobody has removed it
		wantStatus(t, b.get(t, "user:1"), 200)
		wantStatus(t, a.get(t, "user:1"), 200)
		sweep(t, w, a)
		wantOutbox(t, w, "user:1", "throttled override abuse", "released override")
		wantProblem(t, a.do(t, "GET", "/v1/overrides/user:1", ""), 404, "no-override", "user:1")
	}, tenAMinute)
}

// sweep does what workers do with what is due, with the rules of a server.
func sweep(t *testing.T, w, server *world) {
	t.Helper()
	counter := windows.NewRedis(w.redis, w.keys)
	counter.Now = w.clock.Load
	loaded, err := windows.NewRules([]*windows.Rule{tenAMinute, gold})
	testkit.Must(t, err)
	for p := range w.keys.Partitions {
		fields, err := counter.Due(t.Context(), p, w.clock.Load(), 100)
		testkit.Must(t, err)
		_, _, err = counter.Sweep(t.Context(), p, loaded.With(server.overrides), fields)
		testkit.Must(t, err)
	}
	testkit.Must(t, server.overrides.Poll(t.Context()))
}

// A block of a key that no rule matches, with no end, cleared by hand.
func TestABlockNeedsNoRule(t *testing.T) {
	onOverrides(t, func(t *testing.T, w, a, b *world) {
		wantStatus(t, put(t, a, "nobody", `{"block":true}`), 200)
		denied := a.get(t, "nobody", "deny_status=403")
		wantStatus(t, denied, 403)
		if denied.num("retry_after_ms") != -1 || !strings.Contains(denied.str("detail"), "blocked") {
			t.Error(denied.text)
		}
		state := a.do(t, "GET", "/v1/keys/nobody", "")
		if state.status != 200 || !strings.Contains(state.text, `"block":true`) {
			t.Error(state.text)
		}
		// It is renewed before subscribers let go.
		w.advance(24 * time.Hour)
		sweep(t, w, a)
		wantOutbox(t, w, "nobody", "throttled override", "throttled override renewed")
		cleared := a.do(t, "DELETE", "/v1/overrides/nobody?reason=mistake", "")
		if cleared.status != 200 || cleared.body["cleared"] != true {
			t.Error(cleared.text)
		}
		wantStatus(t, a.get(t, "nobody"), 200)
		if cleared = a.do(t, "DELETE", "/v1/overrides/nobody", ""); cleared.body["cleared"] != false {
			t.Error(cleared.text)
		}
		wantOutbox(t, w, "nobody", "throttled override", "throttled override renewed", "released override")
		history := a.do(t, "GET", "/v1/history/nobody", "")
		var changes []any
		for _, e := range history.body["entries"].([]any) {
			changes = append(changes, e.(map[string]any)["change"])
		}
		if len(changes) != 2 || changes[0].(map[string]any)["reason"] != "mistake" ||
			changes[0].(map[string]any)["before"] == nil || changes[1].(map[string]any)["after"] == nil {
			t.Error(history.text)
		}
	}, tenAMinute)
}

// Other windows, a tier, an exemption: the count stays, and decisions follow at once.
func TestOverridesOfLimits(t *testing.T) {
	onOverrides(t, func(t *testing.T, w, a, b *world) {
		wantStatus(t, a.get(t, "user:1", "cost=10"), 200)
		wantStatus(t, a.get(t, "user:1"), 429)
		wantOutbox(t, w, "user:1", "throttled user")

		wantStatus(t, put(t, a, "user:1", `{"windows":[{"limit":15,"per":"1m"}]}`), 200)
		wantOutbox(t, w, "user:1", "throttled user", "released user")
		ok := a.get(t, "user:1", "cost=4")
		if ok.status != 200 || ok.str("override") != "windows" || ok.str("rule") != "user" ||
			!strings.Contains(ok.text, `"used":14`) {
			t.Error(ok.text)
		}
		wantStatus(t, a.get(t, "user:1", "cost=2"), 429)

		wantStatus(t, put(t, a, "user:1", `{"rule":"gold"}`), 200)
		ok = a.get(t, "user:1", "cost=2")
		if ok.status != 200 || ok.str("rule") != "gold" || !strings.Contains(ok.text, `"used":16`) {
			t.Error(ok.text)
		}

		wantStatus(t, put(t, a, "user:1", `{"exempt":true,"reason":"ours"}`), 200)
		for range 3 {
			ok = a.get(t, "user:1", "cost=500")
			if ok.status != 200 || ok.str("rule") != "user" || ok.str("override") != "exempt" ||
				ok.str("reason") != "ours" {
				t.Error(ok.text)
			}
		}
		if a.used(t, "user:1") != 1516 {
			t.Errorf("an exempt key counts: %d", a.used(t, "user:1"))
		}
		wantOutbox(t, w, "user:1", "throttled user", "released user")

		wantStatus(t, a.do(t, "DELETE", "/v1/overrides/user:1", ""), 200)
		wantOutbox(t, w, "user:1", "throttled user", "released user", "throttled user")
		wantStatus(t, a.get(t, "user:1"), 429)
		testkit.Must(t, b.overrides.Poll(t.Context()))
		wantStatus(t, b.get(t, "user:1"), 429)
	}, tenAMinute, gold)
}

// A block stands beside the rule's own throttle: clearing it releases the block alone.
func TestABlockBesideAThrottle(t *testing.T) {
	onOverrides(t, func(t *testing.T, w, a, b *world) {
		wantStatus(t, a.get(t, "user:1", "cost=10"), 200)
		wantStatus(t, put(t, a, "user:1", `{"block":true,"for":"1h"}`), 200)
		wantStatus(t, a.do(t, "DELETE", "/v1/overrides/user:1", ""), 200)
		wantOutbox(t, w, "user:1", "throttled user", "throttled override", "released override")
		wantStatus(t, a.get(t, "user:1"), 429)
		w.advance(61 * time.Second)
		sweep(t, w, a)
		wantOutbox(t, w, "user:1", "throttled user", "throttled override", "released override", "released user")
	}, tenAMinute)
}

// A pattern applies to the keys that fit it and have none of their own; the more specific one first.
func TestOverridesOfPatterns(t *testing.T) {
	onOverrides(t, func(t *testing.T, w, a, b *world) {
		wantStatus(t, put(t, a, "user:a*", `{"windows":[{"limit":2,"per":"1m"}]}`), 200)
		wantStatus(t, put(t, a, "user:ab*", `{"block":true}`), 200)
		wantStatus(t, put(t, a, "user:abc", `{"windows":[{"limit":50,"per":"1m"}],"for":"10s"}`), 200)
		wantStatus(t, put(t, a, `user:a\*`, `{"windows":[{"limit":5,"per":"1m"}]}`), 200)
		testkit.Must(t, b.overrides.Poll(t.Context()))
		for _, s := range []*world{a, b} {
			for key, limit := range map[string]int64{"user:b": 10, "user:ax": 2, "user:abc": 50, "user:a*": 5} {
				got := s.get(t, key)
				if got.status != 200 || !strings.Contains(got.text, `"limit":`+strconv.FormatInt(limit, 10)) {
					t.Errorf("%s: %s", key, got.text)
				}
			}
			wantStatus(t, s.get(t, "user:abd"), 429)
		}
		w.advance(10 * time.Second)
		wantStatus(t, a.get(t, "user:abc"), 429) // its own has ended: the pattern applies
		page := a.do(t, "GET", "/v1/overrides?limit=2", "")
		if !strings.Contains(page.text, `"next":"user:ab*"`) {
			t.Error(page.text)
		}
		page = a.do(t, "GET", "/v1/overrides?limit=2&after="+url.QueryEscape("user:ab*"), "")
		if !strings.Contains(page.text, `"key":"user:a*"`) || strings.Contains(page.text, "next") {
			t.Error(page.text)
		}
	}, tenAMinute)
}

func TestBadOverrides(t *testing.T) {
	onOverrides(t, func(t *testing.T, w, a, b *world) {
		for body, says := range map[string]string{
			`{}`:                                   `it has none`,
			`{"block":false}`:                      `it has none`,
			`{"block":true,"exempt":true}`:         `it has block and exempt`,
			`{"rule":"silver"}`:                    `rule "silver"`,
			`{"windows":[]}`:                       `windows`,
			`{"windows":[{"limit":0,"per":"1m"}]}`: `windows[0].limit`,
			`{"windows":[{"limit":1,"per":"1x"}]}`: `windows[0].per`,
			`{"windows":[{"limit":1,"per":"1m"},{"limit":2,"per":"60s"}]}`: `windows[1].per`,
			`{"block":true,"until":"tomorrow"}`:                            `until: "tomorrow"`,
			`{"block":true,"until":"2001-01-01"}`:                          `until: 2001-01-01T00:00:00Z has passed`,
			`{"block":true,"for":"soon"}`:                                  `for: "soon"`,
			`{"block":true,"for":"1h","until":"2030-01-01"}`:               `several of`,
			`{"block":true,"until_ms":-1}`:                                 `until_ms: -1`,
			`{"block":true,"until_ms":253402300799999999}`:                 `until`,
			`{"block":true,"reason":"` + strings.Repeat("x", 257) + `"}`:   `reason`,
			`{"block":true,"reason":"a\nb"}`:                               `reason`,
		} {
			wantProblem(t, put(t, a, "user:1", body), 400, "bad-override", says)
		}
		wantProblem(t, put(t, a, "nobody", `{"windows":[{"limit":1,"per":"1m"}]}`), 400, "bad-override",
			"no rule matches")
		wantProblem(t, put(t, a, "user:1", `{"block":true,"by":"me"}`), 400, "bad-request", `"by"`)
		wantProblem(t, put(t, a, "user:1", `{"Block":true}`), 400, "bad-request", `expected "block"`)
		wantProblem(t, put(t, a, `user:\`, `{"block":true}`), 400, "bad-key", `\`)
		wantProblem(t, a.do(t, "GET", "/v1/overrides?limit=0", ""), 400, "bad-request", "limit")
		wantProblem(t, a.do(t, "GET", "/v1/overrides?page=2", ""), 400, "bad-request", "page")
		wantProblem(t, a.do(t, "GET", "/v1/history/user:1?limit=x", ""), 400, "bad-request", "limit")
		wantStatus(t, a.get(t, "user:1"), 200)
		wantOutbox(t, w, "user:1")
	}, tenAMinute)
}

// Who set an override stands in it and in its history: the name of the token.
func TestOverridesKnowWhoSetThem(t *testing.T) {
	w := newWorld(t, streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr()), tenAMinute)
	a := withOverrides(t, w, tenAMinute)
	router := httpapi.NewRouter(newTokens(t), a.server.Routes(nil)...)
	ask := func(token, method, path, body string) *httptest.ResponseRecorder {
		rec := httptest.NewRecorder()
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+token)
		router.ServeHTTP(rec, r)
		return rec
	}
	for _, token := range []string{checker, appender, reader} {
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			if rec := ask(token, method, "/v1/overrides/user:1", `{"block":true}`); rec.Code != http.StatusForbidden {
				t.Errorf("%s %s: %d", token, method, rec.Code)
			}
		}
	}
	if rec := ask(operator, "PUT", "/v1/overrides/user:1", `{"block":true}`); rec.Code != 200 ||
		!strings.Contains(rec.Body.String(), `"by":"operator"`) {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	// Another token has the history without who did what.
	if rec := ask(reader, "GET", "/v1/history/user:1", ""); rec.Code != 200 ||
		strings.Contains(rec.Body.String(), "operator") || !strings.Contains(rec.Body.String(), "scope admin") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if rec := ask(operator, "GET", "/v1/history/user:1", ""); !strings.Contains(rec.Body.String(), `"by":"operator"`) {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

// Who is throttled comes page by page, the first to be released first, with what the window holds.
func TestThrottledPages(t *testing.T) {
	onOverrides(t, func(t *testing.T, w, a, b *world) {
		for _, key := range []string{"user:2", "user:1", "user:5"} {
			wantStatus(t, a.get(t, key, "cost=10"), 200)
		}
		w.advance(time.Second)
		wantStatus(t, a.get(t, "user:0", "cost=10"), 200)
		wantStatus(t, put(t, a, "user:9", `{"block":true,"reason":"abuse"}`), 200)
		wantStatus(t, put(t, a, "user:8", `{"block":true,"for":"48h"}`), 200)
		wantStatus(t, put(t, a, "user:5", `{"block":true,"for":"59s"}`), 200)
		var got []string
		path := "/v1/throttled?limit=2"
		for range 10 {
			page := a.do(t, "GET", path, "")
			for _, one := range page.body["throttled"].([]any) {
				k := one.(map[string]any)
				line := fmt.Sprintf("%s %s %.0f/%.0f", k["key"], k["rule"], k["used"], k["limit"])
				if k["reason"] != nil {
					line += fmt.Sprint(" ", k["reason"])
				}
				got = append(got, line)
			}
			if page.str("next") == "" {
				break
			}
			path = "/v1/throttled?limit=2&after=" + url.QueryEscape(page.str("next"))
		}
		want := []string{"user:1 user 10/10", "user:2 user 10/10", "user:5 override 0/0", "user:5 user 10/10",
			"user:0 user 10/10", "user:8 override 0/0", "user:9 override 0/0 abuse"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}, tenAMinute)
}

// A key that the pattern of a block fits has its decision when it is first asked for.
func TestABlockedPatternIsAnnouncedAtTheFirstCheck(t *testing.T) {
	onOverrides(t, func(t *testing.T, w, a, _ *world) {
		wantStatus(t, put(t, a, "user:a*", `{"block":true,"for":"1h","reason":"abuse"}`), 200)
		for range 3 {
			wantStatus(t, a.get(t, "user:a1"), 429)
		}
		streamtest.Eventually(t, patience, "the decision is written", func() (bool, string) {
			return len(w.outbox(t, "user:a1")) > 0, "it is not"
		})
		wantOutbox(t, w, "user:a1", "throttled override abuse")
	}, tenAMinute)
}
