package httpapi_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/windows"
)

func TestBadRequests(t *testing.T) {
	long := strings.Repeat("k", 513)
	ninety := strings.Repeat(`{"key":"user:1"},`, 90)
	onEveryRedis(t, func(t *testing.T, w *world) {
		for _, c := range []struct {
			name, body string
			status     int
			problem    string
			says       string
		}{
			{"empty key", `{"key":""}`, 400, "bad-key", "empty"},
			{"no key", `{"cost":1}`, 400, "bad-key", "empty"},
			{"null", `null`, 400, "bad-key", "empty"},
			{"key of 513 bytes", `{"key":"` + long + `"}`, 400, "bad-key", "513 bytes"},
			{"key with a newline", `{"key":"user:\n"}`, 400, "bad-key", "U+000A"},
			{"cost 0", `{"key":"user:1","cost":0}`, 400, "bad-count", "0 is not between 1"},
			{"cost -1", `{"key":"user:1","cost":-1}`, 400, "bad-count", "-1"},
			{"cost beyond the largest", `{"key":"user:1","cost":1000000001}`, 400, "bad-count", "1000000001"},
			{"cost above the limit", `{"key":"user:1","cost":11}`, 400, "cost-exceeds-limit",
				`cost 11 of key "user:1", the rule "user" allows 10 at most`},
			{"cost in quotes", `{"key":"user:1","cost":"abc"}`, 400, "bad-request", "at byte 28"},
			{"cost 1.5", `{"key":"user:1","cost":1.5}`, 400, "bad-request", "at byte 26"},
			{"comma too many", `{"key":"user:1",}`, 400, "bad-request", "at byte 17"},
			{"comma too many, further on", "{\n  \"key\":\"user:1\",\n}", 400, "bad-request", "at byte 21"},
			{"cut off", `{"key":"us`, 400, "bad-request", "at byte 10"},
			{"nothing", ``, 400, "bad-request", "at byte 0"},
			{"no object", `[]`, 400, "bad-request", "array"},
			{"unknown field", `{"key":"user:1","costs":2}`, 400, "bad-request", `"costs"`},
			{"two values", `{"key":"user:1"} {"key":"user:2"}`, 400, "bad-request",
				"more than one JSON value, from byte 16 on"},
			{"one and a half", `{"key":"user:1"}}`, 400, "bad-request", "more than one JSON value, from byte 16 on"},
			{"not UTF-8", "{\"key\":\"user:\xff\"}", 400, "bad-request", "UTF-8"},
			{"too large", `{"key":"` + strings.Repeat("k", 64<<10) + `"}`, 413, "body-too-large", "65536 bytes"},
			{"both forms", `{"key":"user:1","checks":[{"key":"user:1"}]}`, 400, "bad-request",
				`either "key" and "cost" or "checks"`},
			{"cost beside checks", `{"cost":1,"checks":[{"key":"user:1"}]}`, 400, "bad-request",
				`either "key" and "cost" or "checks"`},
			{"no checks", `{"checks":[]}`, 400, "bad-request", "0 entries"},
			{"101 checks", `{"checks":[` + ninety + strings.TrimSuffix(ninety[:11*17], ",") + `]}`, 400,
				"bad-request", "101 entries, expected 1 to 100"},
			{"checks in checks", `{"checks":[{"key":"user:1"},{"checks":[{"key":"user:1"}]}]}`, 400, "bad-request",
				"checks[1]"},
			{"bad key in checks", `{"checks":[{"key":"user:1"},{"key":""}]}`, 400, "bad-key", "empty"},
			{"bad cost in checks", `{"checks":[{"key":"user:1"},{"key":"user:2","cost":-1}]}`, 400, "bad-count",
				"checks[1]"},
			{"cost 0 in checks", `{"checks":[{"key":"user:1","cost":0}]}`, 400, "bad-count", "checks[0]"},
			{"cost above the limit in checks", `{"checks":[{"key":"user:2"},{"key":"user:1","cost":11}]}`, 400,
				"cost-exceeds-limit", "cost 11"},
			{"above the limit in sum", `{"checks":[{"key":"user:1","cost":6},{"key":"user:1","cost":5}]}`, 400,
				"cost-exceeds-limit", "cost 11"},
		} {
			t.Run("POST "+c.name, func(t *testing.T) { wantProblem(t, w.post(t, c.body), c.status, c.problem, c.says) })
		}
		for _, c := range []struct{ query, problem, says string }{
			{"", "bad-key", "empty"},
			{"key=", "bad-key", "empty"},
			{"key=" + long, "bad-key", "513 bytes"},
			{"key=a%0Ab", "bad-key", "U+000A"},
			{"key=a%FF", "bad-key", "UTF-8"},
			{"key=user:1&cost=0", "bad-count", "0 is not between 1"},
			{"key=user:1&cost=-1", "bad-count", "-1"},
			{"key=user:1&cost=1000000001", "bad-count", "1000000001"},
			{"key=user:1&cost=abc", "bad-count", `"abc"`},
			{"key=user:1&cost=", "bad-count", `""`},
			{"key=user:1&cost=1.5", "bad-count", `"1.5"`},
			{"key=user:1&cost=11", "cost-exceeds-limit", "cost 11"},
			{"key=user:1&costs=1", "bad-request", `"costs"`},
			{"key=user:1&cost=%zz", "bad-request", "%zz"}, // or it would cost 1
			{"key=user:1;cost=5", "bad-request", "semicolon"},
			{"key=user:1&cost=1&cost=9", "bad-request", `"cost"`},
			{"key=user:1&key=user:2", "bad-request", `"key"`},
		} {
			t.Run("GET "+c.query, func(t *testing.T) {
				wantProblem(t, w.do(t, "GET", "/v1/check?"+c.query, ""), 400, c.problem, c.says)
			})
		}
		for _, key := range []string{"user:1", "user:2"} {
			if n := w.used(t, key); n != 0 {
				t.Errorf("%s was charged %d by requests that were refused", key, n)
			}
		}
	}, tenAMinute)
}

// Other parsers would take these in another way than this one.
func TestAmbiguousChecksAreRefused(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		for _, body := range []string{`{"key":"user:1","cost":null}`, `{"key":null}`, `{"KEY":"user:1"}`,
			`{"key":"user:1","Cost":2}`, `{"key":"user:2","key":"user:1"}`,
			`{"checks":[{"key":"user:1","cost":1,"cost":2}]}`, `{"key":"user:1","cost":"3"}`} {
			a := w.post(t, body)
			wantStatus(t, a, 400)
			if text := fmt.Sprint(a.body); strings.Contains(text, "Go ") || strings.Contains(text, "checkBody") {
				t.Errorf("%s: the answer names Go's types: %s", body, text)
			}
		}
		if n := w.used(t, "user:1"); n != 0 {
			t.Errorf("%d used", n)
		}
	}, tenAMinute)
}

func TestCostIsOneWhereNoneIsGiven(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		for i, ask := range []func() answer{
			func() answer { return w.get(t, "user:1") },
			func() answer { return w.post(t, `{"key":"user:1"}`) },
			func() answer { return w.post(t, `{"key":"user:1"}  `+"\n") },
			func() answer { return w.post(t, `{"checks":[{"key":"user:1"}]}`) },
		} {
			wantStatus(t, ask(), 200)
			if n := w.used(t, "user:1"); n != int64(i+1) {
				t.Errorf("%d used after request %d", n, i+1)
			}
		}
	}, tenAMinute)
}

// The largest request that may come is answered.
func TestLargestCheck(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		var checks []string
		for i := range 100 {
			checks = append(checks, fmt.Sprintf(`{"key":"{user:}%s%d"}`, strings.Repeat("k", 500), i))
		}
		a := w.post(t, `{"checks":[`+strings.Join(checks, ",")+`]}`)
		wantStatus(t, a, 200)
		if list, _ := a.body["checks"].([]any); len(list) != 100 || a.body["atomic"] != true {
			t.Errorf("%d answers, atomic %v", len(list), a.body["atomic"])
		}
	}, rule("user", func(r *windows.Rule) { r.Match = "*" }, tenAMinute.Windows...))
}

// A key may be anything that is text: what is charged under it is found, listed
// and forgotten under it.
func TestKeysOfAllKinds(t *testing.T) {
	anyKey := rule("any", func(r *windows.Rule) { r.Match = "*" }, tenAMinute.Windows...)
	onEveryRedis(t, func(t *testing.T, w *world) {
		for _, key := range []string{
			"user:42", "a/b/c", "/", "//", "/a/", "..", "../../etc", "a/../b", "./a", "100%", "%2F", "a%20b", "a b",
			"a+b", "a?b=c", "a#b", "a;b",
			"ключ", "😀", "é", `"quoted"\`, "{tag}:x", "{}", "}{", "*", "a\u2028b", strings.Repeat("k", 512),
			strings.Repeat("é", 256), "a!b|c,d@e",
		} {
			wantStatus(t, w.get(t, key, "cost=10"), 200)
			path := "/v1/keys/" + url.PathEscape(key)
			a := w.do(t, "GET", path, "")
			if a.status != 200 || a.str("key") != key || a.str("rule") != "any" || w.used(t, key) != 10 {
				t.Errorf("%q: %d %s, want 10 used", key, a.status, a.text)
			}
			if a = w.do(t, "GET", "/v1/throttled", ""); !strings.Contains(a.text, "any") ||
				len(throttledKeys(a)) != 1 || throttledKeys(a)[0] != key {
				t.Errorf("%q: throttled are %q", key, throttledKeys(a))
			}
			if a = w.do(t, "DELETE", path, ""); a.status != 200 || a.str("key") != key || a.body["reset"] != true {
				t.Errorf("reset of %q: %d %s", key, a.status, a.text)
			}
			if a = w.do(t, "DELETE", path, ""); a.status != 200 || a.body["reset"] != false {
				t.Errorf("second reset of %q: %d %s", key, a.status, a.text)
			}
			if n := w.used(t, key); n != 0 {
				t.Errorf("%q: %d used after a reset", key, n)
			}
		}
		if a := w.do(t, "GET", "/v1/throttled", ""); len(throttledKeys(a)) != 0 {
			t.Errorf("throttled after all was reset: %s", a.text)
		}
	}, anyKey)
}

func throttledKeys(a answer) (keys []string) {
	list, _ := a.body["throttled"].([]any)
	for _, e := range list {
		key, _ := e.(map[string]any)["key"].(string)
		keys = append(keys, key)
	}
	return keys
}

// As they stand in the request line, escaped or not.
func TestKeyPathsAsTheyAreSent(t *testing.T) {
	anyKey := rule("any", func(r *windows.Rule) { r.Match = "*" }, tenAMinute.Windows...)
	onEveryRedis(t, func(t *testing.T, w *world) {
		for path, key := range map[string]string{
			"a/b": "a/b", "a%2Fb": "a/b", "../x": "../x", "%2E%2E/x": "../x", "a//b": "a//b", "a+b": "a+b",
			"a%2Bb": "a+b", "%C3%A9": "é", "a:b@c": "a:b@c", "user:1?x=y": "user:1",
		} {
			if a := w.do(t, "GET", "/v1/keys/"+path, ""); a.status != 200 || a.str("key") != key {
				t.Errorf("%s: %d %s, want the key %q", path, a.status, a.text, key)
			}
		}
		for path, says := range map[string]string{"": "empty", "%0A": "U+000A", "%FF": "UTF-8",
			strings.Repeat("k", 513): "513"} {
			wantProblem(t, w.do(t, "GET", "/v1/keys/"+path, ""), 400, "bad-key", says)
			wantProblem(t, w.do(t, "DELETE", "/v1/keys/"+path, ""), 400, "bad-key", says)
		}
	}, anyKey)
}

func TestKeyWithoutARule(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		wantProblem(t, w.do(t, "GET", "/v1/keys/ip:1", ""), 404, "no-rule", `"ip:1"`)
		wantProblem(t, w.do(t, "DELETE", "/v1/keys/ip:1", ""), 404, "no-rule", `"ip:1"`)
	}, tenAMinute)
}
