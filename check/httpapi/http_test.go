package httpapi_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/windows"
)

var tenAMinute = rule("user", nil, windows.Window{Limit: 10, Per: time.Minute})

// wantHeaders holds the headers named against those of an answer; "" is for none.
func wantHeaders(t *testing.T, h http.Header, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for name := range want {
		got[name] = h.Get(name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

// window is one whose units all come back at once.
func window(limit, ms, used, reset float64) map[string]any {
	return map[string]any{"limit": limit, "window_ms": ms, "used": used, "remaining": limit - used, "reset_ms": reset,
		"next_free_ms": reset}
}

// The bodies and headers are a contract with callers in any language, so they
// are written out.
func TestCheckAllowed(t *testing.T) {
	ask := map[string]func(*testing.T, *world) answer{
		"GET":  func(t *testing.T, w *world) answer { return w.get(t, "user:42", "cost=3") },
		"POST": func(t *testing.T, w *world) answer { return w.post(t, `{"key":"user:42","cost":3}`) },
	}
	onEveryRedis(t, func(t *testing.T, w *world) {
		for method, ask := range ask {
			w.do(t, "DELETE", "/v1/keys/user:42", "")
			a := ask(t, w)
			wantStatus(t, a, 200)
			body := map[string]any{
				"allowed": true, "rule": "user", "key": "user:42", "cost": 3.0,
				"windows":        []any{window(10, 60_000, 3, 60_000)},
				"retry_after_ms": 0.0, "source": "redis",
			}
			if diff := cmp.Diff(body, a.body); diff != "" {
				t.Errorf("%s: body (-want +got):\n%s", method, diff)
			}
			wantHeaders(t, a.header, map[string]string{
				"RateLimit-Policy": `"user-1m";q=10;w=60`, "RateLimit": `"user-1m";r=7;t=60`, "Retry-After": "",
				"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "60",
				"Cache-Control": "no-store", "Content-Type": "application/json",
			})
		}
	}, tenAMinute)
}

func TestCheckDenied(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		wantStatus(t, w.get(t, "user:42", "cost=3"), 200)
		w.advance(12_345 * time.Millisecond)
		a := w.get(t, "user:42", "cost=8")
		wantStatus(t, a, 429)
		detail := `"user:42" is over the limit of rule "user"; it is admitted again in 47655 ms`
		body := map[string]any{
			"type": "urn:streamcounter:over-limit", "title": "Over the limit", "status": 429.0, "detail": detail,
			"allowed": false, "rule": "user", "key": "user:42", "cost": 8.0,
			"windows":        []any{window(10, 60_000, 3, 47_655)},
			"retry_after_ms": 47_655.0, "source": "redis",
		}
		if diff := cmp.Diff(body, a.body); diff != "" {
			t.Errorf("body (-want +got):\n%s", diff)
		}
		wantHeaders(t, a.header, map[string]string{
			"RateLimit-Policy": `"user-1m";q=10;w=60`, "RateLimit": `"user-1m";r=7;t=48`, "Retry-After": "48",
			"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "48",
			"Cache-Control": "no-store", "Content-Type": "application/problem+json",
		})

		w.advance(47_654 * time.Millisecond)
		wantStatus(t, w.get(t, "user:42", "cost=8"), 429)
		w.advance(time.Millisecond)
		wantStatus(t, w.get(t, "user:42", "cost=8"), 200) // neither earlier nor later than was said
	}, tenAMinute)
}

func TestCheckSeveralWindows(t *testing.T) {
	rule := rule("user", nil, windows.Window{Limit: 2, Per: 1500 * time.Millisecond},
		windows.Window{Limit: 5, Per: time.Hour})
	onEveryRedis(t, func(t *testing.T, w *world) {
		wantStatus(t, w.get(t, "user:1", "cost=2"), 200)
		w.advance(time.Second)
		a := w.get(t, "user:1")
		wantStatus(t, a, 429)
		if diff := cmp.Diff([]any{window(2, 1500, 2, 500), window(5, 3_600_000, 2, 3_599_000)},
			a.body["windows"]); diff != "" {
			t.Errorf("windows (-want +got):\n%s", diff)
		}
		wantHeaders(t, a.header, map[string]string{
			"RateLimit-Policy": `"user-1500ms";q=2;w=2, "user-1h";q=5;w=3600`,
			"RateLimit":        `"user-1500ms";r=0;t=1, "user-1h";r=3;t=3599`,
			"Retry-After":      "1", "X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1",
		})
		w.advance(500 * time.Millisecond)
		wantStatus(t, w.get(t, "user:1", "cost=2"), 200)
		w.advance(1500 * time.Millisecond)
		a = w.get(t, "user:1", "cost=2") // the hour has one left, and frees two at 3,600 s
		wantStatus(t, a, 429)
		wantHeaders(t, a.header, map[string]string{
			"RateLimit": `"user-1500ms";r=2;t=0, "user-1h";r=1;t=3597`, "Retry-After": "3597",
			"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "1",
		})
		if got := a.num("retry_after_ms"); got != 3_597_000 {
			t.Errorf("retry_after_ms %d, want 3597000", got)
		}
	}, rule)
}

// nginx takes a 429 of auth_request for an error of ours.
func TestDenyStatus(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		wantStatus(t, w.get(t, "user:1", "cost=10", "deny_status=403"), 200)
		a := w.get(t, "user:1", "deny_status=403")
		wantStatus(t, a, 403) // do sees to it that the body says 403 too
		wantHeaders(t, a.header, map[string]string{"Retry-After": "60"})
		for _, bad := range []string{"200", "399", "500", "abc", ""} {
			wantProblem(t, w.get(t, "user:1", "deny_status="+bad), 400, "bad-request", "deny_status")
		}
	}, tenAMinute)
}

func TestCheckWithoutARule(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		a := w.get(t, "ip:1", "cost=1000000000")
		wantStatus(t, a, 200)
		body := map[string]any{
			"allowed": true, "rule": "", "key": "ip:1", "cost": 1e9, "windows": []any{},
			"retry_after_ms": 0.0, "source": "policy", "note": "no rule matches this key",
		}
		if diff := cmp.Diff(body, a.body); diff != "" {
			t.Errorf("body (-want +got):\n%s", diff)
		}
		wantHeaders(t, a.header, map[string]string{"RateLimit-Policy": "", "RateLimit": "", "X-RateLimit-Limit": "",
			"Retry-After": ""})
	}, tenAMinute)
}

// shadowOf gives the answer of the only shadow rule.
func shadowOf(t *testing.T, a answer) map[string]any {
	t.Helper()
	list, _ := a.body["shadow"].([]any)
	if len(list) != 1 {
		t.Fatalf("%s, want one shadow rule", a.text)
	}
	return list[0].(map[string]any)
}

// A shadow rule above the live one hides nothing: the live rule denies, the shadow
// says what it would have done, on the same count.
func TestShadowRuleBesideALiveOne(t *testing.T) {
	strict := rule("new-strict", func(r *windows.Rule) { r.Match, r.Shadow = "user:*", true },
		windows.Window{Limit: 4, Per: time.Minute})
	other := rule("new-buckets", func(r *windows.Rule) {
		r.Match, r.Shadow, r.Algorithm = "user:*", true,
			windows.SlidingBuckets
	},
		windows.Window{Limit: 12, Per: time.Minute})
	onEveryRedis(t, func(t *testing.T, w *world) {
		admitted := 0
		for i := range 47 {
			a := w.get(t, "user:1")
			list, _ := a.body["shadow"].([]any)
			if len(list) != 2 || a.str("rule") != "user" || (list[0].(map[string]any)["allowed"] == true) != (i < 4) ||
				list[1].(map[string]any)["allowed"] != true {
				t.Fatalf("check %d: %s", i+1, a.text)
			}
			if a.status == 200 {
				admitted++
			}
			if h := a.header.Get("RateLimit-Policy"); strings.Contains(h, "new-") {
				t.Errorf("the headers show a shadow rule: %s", h)
			}
		}
		if admitted != 10 {
			t.Errorf("%d of 47 were admitted, want 10", admitted)
		}
	}, strict, tenAMinute, other)
}

func TestShadowRuleNeverDenies(t *testing.T) {
	shadow := rule("user", func(r *windows.Rule) { r.Shadow = true }, windows.Window{Limit: 2, Per: time.Minute})
	onEveryRedis(t, func(t *testing.T, w *world) {
		for i := range 5 {
			a := w.get(t, "user:1")
			wantStatus(t, a, 200)
			if s := shadowOf(t, a); a.str("rule") != "" || a.str("source") != "redis" ||
				(s["allowed"] == true) != (i < 2) || (s["retry_after_ms"] == 0.0) != (i < 2) {
				t.Errorf("check %d: %s", i+1, a.text)
			}
			if a.num("retry_after_ms") != 0 || a.header.Get("Retry-After") != "" ||
				a.header.Get("RateLimit-Policy") != "" {
				t.Errorf("check %d tells to wait, or shows the shadow: %s", i+1, a.text)
			}
		}
		state := w.do(t, "GET", "/v1/keys/user:1", "")
		if used := shadowOf(t, state)["windows"].([]any)[0].(map[string]any)["used"]; used != 5.0 ||
			state.str("rule") != "" {
			t.Errorf("%s, want all 5 used: a shadow rule counts", state.text)
		}
		a := w.get(t, "user:2", "cost=3") // above the limit, which another rule would refuse for good
		wantStatus(t, a, 200)
		if s := shadowOf(t, a); s["allowed"] != false || s["retry_after_ms"] != -1.0 || a.num("retry_after_ms") != 0 {
			t.Errorf("a cost above the limit: %s, want that it could never be, and no wait", a.text)
		}
	}, shadow)
}

func TestNoSuchThing(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		for _, target := range []string{"/", "/v1", "/v1/checks", "/v1/keys", "/v1/check/"} {
			a := w.do(t, "GET", target, "")
			if a.status != 404 || a.str("type") != "about:blank" {
				t.Errorf("GET %s: %d %s, want 404 and no error of ours", target, a.status, a.text)
			}
		}
		for target, allow := range map[string]string{
			"/v1/check": "GET, HEAD, POST", "/v1/events": "POST", "/v1/throttled": "GET, HEAD",
			"/v1/keys/user:1": "GET, HEAD, DELETE",
		} {
			a := w.do(t, "PUT", target, "")
			wantStatus(t, a, 405)
			wantHeaders(t, a.header, map[string]string{"Allow": allow})
		}
		wantStatus(t, w.do(t, "GET", "/healthz", ""), 200)
		wantStatus(t, w.do(t, "GET", "/readyz", ""), 200)
	}, tenAMinute)
}
