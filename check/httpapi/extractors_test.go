package httpapi_test

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

func sha(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// extracting is a world whose keys are all limited, behind every extractor.
func extracting(t *testing.T) *world {
	t.Helper()
	anyKey := rule("any", func(r *windows.Rule) { r.Match = "*" }, tenAMinute.Windows...)
	return newWorldWith(t, streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr()),
		func(_ *check.Config, h *httpapi.Config) { h.Extractors = newExtractors(t) }, anyKey)
}

func TestExtractors(t *testing.T) {
	w := extracting(t)
	for _, c := range []struct {
		name, extractor, peer, headers string // headers: "Name: value", one a line
		status                         int
		key, says                      string
	}{
		{"a stranger's own address", "by-address", "192.0.2.9:1", "", 200, "ip:192.0.2.9", ""},
		{"what a stranger writes is not read", "by-address", "192.0.2.9:1", "X-Forwarded-For: 198.51.100.1", 200,
			"ip:192.0.2.9", ""},
		{"behind one proxy", "by-address", "127.0.0.1:1", "X-Forwarded-For: 198.51.100.1", 200, "ip:198.51.100.1", ""},
		{"behind two", "by-address", "127.0.0.1:1", "X-Forwarded-For: 198.51.100.1, 10.1.2.3", 200, "ip:198.51.100.1",
			""},
		{"forged before it", "by-address", "127.0.0.1:1", "X-Forwarded-For: 203.0.113.5, 198.51.100.1, 10.1.2.3", 200,
			"ip:198.51.100.1", ""},
		{"forged as one of ours", "by-address", "127.0.0.1:1", "X-Forwarded-For: 10.9.9.9, 198.51.100.1", 200,
			"ip:198.51.100.1", ""},
		{"forged rubbish", "by-address", "127.0.0.1:1", "X-Forwarded-For: \x01rubbish, 198.51.100.1", 200,
			"ip:198.51.100.1", ""},
		{"in two headers", "by-address", "127.0.0.1:1", "X-Forwarded-For: 203.0.113.5\nX-Forwarded-For: 198.51.100.1",
			200, "ip:198.51.100.1", ""},
		{"one of ours asks for itself", "by-address", "127.0.0.1:1", "X-Forwarded-For: 10.1.2.3", 200, "ip:10.1.2.3",
			""},
		{"with a port", "by-address", "127.0.0.1:1", "X-Forwarded-For: 198.51.100.1:4711", 200, "ip:198.51.100.1", ""},
		{"IPv6 shares its network", "by-address", "[::1]:1", "X-Forwarded-For: 2001:db8:1:2:3:4:5:6", 200,
			"ip:2001:db8:1:2::/64", ""},
		{"IPv6 with a port and a zone", "by-address", "[::1]:1", "X-Forwarded-For: [fe80::1%eth0]:80", 200,
			"ip:fe80::/64", ""},
		{"IPv4 in IPv6", "by-address", "[::ffff:127.0.0.1]:1", "X-Forwarded-For: ::ffff:198.51.100.1", 200,
			"ip:198.51.100.1", ""},
		{"IPv6, whole", "by-host", "127.0.0.1:1", "X-Forwarded-For: 2001:DB8::0001", 200, "ip:2001:db8::1", ""},
		{"a proxy that tells nothing", "by-address", "127.0.0.1:1", "", 400, "",
			"no X-Forwarded-For from the trusted proxy 127.0.0.1"},
		{"a proxy that tells nothing, allowed", "by-host", "127.0.0.1:1", "", 200, "", "lets such requests pass"},
		{"a proxy that tells rubbish", "by-address", "127.0.0.1:1", "X-Forwarded-For: 198.51.100.1, unknown", 400, "",
			`"unknown", which is no address`},
		{"an empty hop", "by-address", "127.0.0.1:1", "X-Forwarded-For: 198.51.100.1,", 400, "", "no address"},

		{"a header", "by-key", "192.0.2.9:1", "X-Api-Key: alice", 200, "key:alice", ""},
		{"its cost", "by-key", "192.0.2.9:1", "X-Api-Key: bob\nX-Cost: 3", 200, "key:bob", `"cost":3`},
		{"a cost that is none", "by-key", "192.0.2.9:1", "X-Api-Key: bob\nX-Cost: 3.5", 400, "", "X-Cost"},
		{"a cost of zero", "by-key", "192.0.2.9:1", "X-Api-Key: bob\nX-Cost: 0", 400, "", "0 is not between"},
		{"above the limit", "by-key", "192.0.2.9:1", "X-Api-Key: bob\nX-Cost: 11", 400, "", "allows 10 at most"},
		{"no header", "by-key", "192.0.2.9:1", "", 400, "", "no header X-Api-Key"},
		{"an empty header", "by-key", "192.0.2.9:1", "X-Api-Key: ", 400, "", "no header X-Api-Key"},
		{"two of them", "by-key", "192.0.2.9:1", "X-Api-Key: a\nX-Api-Key: b", 400, "", "stands 2 times"},
		{"not UTF-8", "by-key", "192.0.2.9:1", "X-Api-Key: a\xff", 400, "", "not valid UTF-8"},
		{"a control character", "by-key", "192.0.2.9:1", "X-Api-Key: a\x7f", 400, "", "U+007F"},
		{"too long", "by-key", "192.0.2.9:1", "X-Api-Key: " + strings.Repeat("x", 509), 400, "", "has 513 bytes"},
		{"a secret", "by-secret", "192.0.2.9:1", "Authorization: Bearer hush", 200, "who:" + sha("Bearer hush"), ""},
		{"a long secret", "by-secret", "192.0.2.9:1", "Authorization: " + strings.Repeat("x", 5000), 200,
			"who:" + sha(strings.Repeat("x", 5000)), ""},
		{"no secret", "by-secret", "192.0.2.9:1", "", 200, "", `"source":"policy"`},

		{"a path", "by-path", "192.0.2.9:1", "X-Forwarded-Uri: /a/b/c?d=e/f", 200, "path:/a/b", ""},
		{"the root", "by-path", "192.0.2.9:1", "X-Forwarded-Uri: /", 200, "path:/", ""},
		{"a short one", "by-path", "192.0.2.9:1", "X-Forwarded-Uri: /only/", 200, "path:/only", ""},
		{"path parameters", "by-path", "192.0.2.9:1", "X-Forwarded-Uri: /a;v=1/b;x=1/c", 200, "path:/a/b", ""},
		{"encoded path parameters", "by-path", "192.0.2.9:1", "X-Forwarded-Uri: /x/..%3b/a/b%3Bx", 200, "path:/a/b",
			""},
		{"backslashes", "by-path", "192.0.2.9:1", `X-Forwarded-Uri: /a\b`, 200, "path:/a/b", ""},
		{"encoded backslashes", "by-path", "192.0.2.9:1", "X-Forwarded-Uri: /x%5C..%5ca/b", 200, "path:/a/b", ""},
		{"walked around", "by-path", "192.0.2.9:1", "X-Forwarded-Uri: //x/..//%61/./b/../b/c", 200, "path:/a/b", ""},
		{"above the root", "by-path", "192.0.2.9:1", "X-Forwarded-Uri: /../../a/b", 200, "path:/a/b", ""},
		{"a whole URL", "by-path", "192.0.2.9:1", "X-Forwarded-Uri: http://h/a/b/c", 200, "path:/a/b", ""},
		{"a control character in it", "by-path", "192.0.2.9:1", "X-Forwarded-Uri: /a%0Ab", 400, "", "U+000A"},
		{"bad escapes", "by-path", "192.0.2.9:1", "X-Forwarded-Uri: /%zz", 400, "", "is no path"},
		{"no path", "by-path", "192.0.2.9:1", "X-Forwarded-Uri: a b", 400, "", "is no path"},
		{"another header", "by-nginx-path", "192.0.2.9:1", "X-Original-URI: /a/b", 200, "/a", ""},
		{"nobody's", "none", "192.0.2.9:1", "", 400, "", `no extractor "none"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/v1/check?extractor="+c.extractor, nil)
			r.RemoteAddr = c.peer
			for line := range strings.Lines(c.headers) {
				name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
				r.Header.Add(name, value)
			}
			w.handler = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
				w.server.Handler(
					nil).ServeHTTP(rw, r)
			})
			a := w.do(t, "GET", "/", "")
			if a.status != c.status || a.str("key") != c.key || !strings.Contains(strings.ReplaceAll(a.text, `\"`,
				`"`), c.says) {
				t.Errorf("%d, key %q, %s; want %d, key %q, saying %q", a.status, a.str("key"), a.text, c.status,
					c.key, c.says)
			}
		})
	}
}

func TestExtractorsDeny(t *testing.T) {
	w := extracting(t)
	ask := func(more string) answer {
		return w.do(t, "GET", "/v1/check?extractor=by-address"+more, "") // httptest's peer is 192.0.2.1
	}
	for range 10 {
		wantStatus(t, ask(""), 200)
	}
	if a := ask(""); a.status != 429 || a.header.Get("Retry-After") != "60" ||
		a.header.Get("RateLimit") != `"any-1m";r=0;t=60` || a.str("key") != "ip:192.0.2.1" {
		t.Errorf("%d %v %s", a.status, a.header, a.text)
	}
	wantStatus(t, ask("&deny_status=403"), 403)
	// What a caller can get wrong on purpose is a denial too, or a proxy that passes
	// errors of the check would pass him.
	for query, want := range map[string]string{
		"extractor=by-key": "bad-request", "key=": "bad-key", "key=user:1&cost=11": "cost-exceeds-limit",
	} {
		wantProblem(t, w.do(t, "GET", "/v1/check?deny_status=403&"+query, ""), 403, want, "")
		wantProblem(t, w.do(t, "GET", "/v1/check?"+query, ""), 400, want, "")
	}
	wantProblem(t, w.do(t, "GET", "/v1/check?deny_status=403&extractor=none", ""), 400, "bad-request", "no extractor")
	for _, more := range []string{"&key=a", "&cost=1", "&key=a&cost=2"} {
		wantProblem(t, ask(more), 400, "bad-request", "the extractor tells key and cost")
	}
}
