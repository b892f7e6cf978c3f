package check_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

const everyExtractor = `extractors:
  - {name: by-address, from: client-address, prefix: "ip:", trusted_proxies: [127.0.0.1, 10.0.0.0/8, "::1", "fd00::/8"]}
  - {name: by-host, from: client-address, prefix: "ip:", trusted_proxies: [127.0.0.1/32], ipv6_prefix: 128, missing: allow}
  - {name: by-key, from: header, header: X-Api-Key, prefix: "key:", cost_header: X-Cost}
  - {name: by-secret, from: header, header: Authorization, prefix: "who:", hash: true, missing: allow}
  - {name: by-path, from: path, prefix: "path:", segments: 2}
  - {name: by-nginx-path, from: path, header: X-Original-URI}
`

func writeExtractors(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "extractors.yml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newExtractors(t testing.TB, text string) *check.Extractors {
	t.Helper()
	x, err := check.NewExtractors(writeExtractors(t, text), nil)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// extracting is a world whose keys are all limited, behind every extractor.
func extracting(t *testing.T) *world {
	t.Helper()
	anyKey := rule("any", func(r *windows.Rule) { r.Match = "*" }, tenAMinute.Windows...)
	return newWorldWith(t, connect(t, streamtest.EmbeddedRedis(t).Addr()), func(c *check.Config) { c.Extractors = newExtractors(t, everyExtractor) }, anyKey)
}

func TestExtractors(t *testing.T) {
	w := extracting(t)
	for _, c := range []struct {
		name, extractor, peer, headers string // headers: "Name: value", one a line
		status                         int
		key, says                      string
	}{
		{"a stranger's own address", "by-address", "192.0.2.9:1", "", 200, "ip:192.0.2.9", ""},
		{"what a stranger writes is not read", "by-address", "192.0.2.9:1", "X-Forwarded-For: 198.51.100.1", 200, "ip:192.0.2.9", ""},
		{"behind one proxy", "by-address", "127.0.0.1:1", "X-Forwarded-For: 198.51.100.1", 200, "ip:198.51.100.1", ""},
		{"behind two", "by-address", "127.0.0.1:1", "X-Forwarded-For: 198.51.100.1, 10.1.2.3", 200, "ip:198.51.100.1", ""},
		{"forged before it", "by-address", "127.0.0.1:1", "X-Forwarded-For: 203.0.113.5, 198.51.100.1, 10.1.2.3", 200, "ip:198.51.100.1", ""},
		{"forged as one of ours", "by-address", "127.0.0.1:1", "X-Forwarded-For: 10.9.9.9, 198.51.100.1", 200, "ip:198.51.100.1", ""},
		{"forged rubbish", "by-address", "127.0.0.1:1", "X-Forwarded-For: \x01rubbish, 198.51.100.1", 200, "ip:198.51.100.1", ""},
		{"in two headers", "by-address", "127.0.0.1:1", "X-Forwarded-For: 203.0.113.5\nX-Forwarded-For: 198.51.100.1", 200, "ip:198.51.100.1", ""},
		{"one of ours asks for itself", "by-address", "127.0.0.1:1", "X-Forwarded-For: 10.1.2.3", 200, "ip:10.1.2.3", ""},
		{"with a port", "by-address", "127.0.0.1:1", "X-Forwarded-For: 198.51.100.1:4711", 200, "ip:198.51.100.1", ""},
		{"IPv6 shares its network", "by-address", "[::1]:1", "X-Forwarded-For: 2001:db8:1:2:3:4:5:6", 200, "ip:2001:db8:1:2::/64", ""},
		{"IPv6 with a port and a zone", "by-address", "[::1]:1", "X-Forwarded-For: [fe80::1%eth0]:80", 200, "ip:fe80::/64", ""},
		{"IPv4 in IPv6", "by-address", "[::ffff:127.0.0.1]:1", "X-Forwarded-For: ::ffff:198.51.100.1", 200, "ip:198.51.100.1", ""},
		{"IPv6, whole", "by-host", "127.0.0.1:1", "X-Forwarded-For: 2001:DB8::0001", 200, "ip:2001:db8::1", ""},
		{"a proxy that tells nothing", "by-address", "127.0.0.1:1", "", 400, "", "no X-Forwarded-For from the trusted proxy 127.0.0.1"},
		{"a proxy that tells nothing, allowed", "by-host", "127.0.0.1:1", "", 200, "", "lets such requests pass"},
		{"a proxy that tells rubbish", "by-address", "127.0.0.1:1", "X-Forwarded-For: 198.51.100.1, unknown", 400, "", `"unknown", which is no address`},
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
		{"a long secret", "by-secret", "192.0.2.9:1", "Authorization: " + strings.Repeat("x", 5000), 200, "who:" + sha(strings.Repeat("x", 5000)), ""},
		{"no secret", "by-secret", "192.0.2.9:1", "", 200, "", `"source":"policy"`},

		{"a path", "by-path", "192.0.2.9:1", "X-Forwarded-Uri: /a/b/c?d=e/f", 200, "path:/a/b", ""},
		{"the root", "by-path", "192.0.2.9:1", "X-Forwarded-Uri: /", 200, "path:/", ""},
		{"a short one", "by-path", "192.0.2.9:1", "X-Forwarded-Uri: /only/", 200, "path:/only", ""},
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
			w.handler = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { w.service.Handler(nil).ServeHTTP(rw, r) })
			a := w.do(t, "GET", "/", "")
			if a.status != c.status || a.str("key") != c.key || !strings.Contains(strings.ReplaceAll(a.text, `\"`, `"`), c.says) {
				t.Errorf("%d, key %q, %s; want %d, key %q, saying %q", a.status, a.str("key"), a.text, c.status, c.key, c.says)
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
	if a := ask(""); a.status != 429 || a.header.Get("Retry-After") != "60" || a.header.Get("RateLimit") != `"any";r=0;t=60` || a.str("key") != "ip:192.0.2.1" {
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

func TestExtractorsFileErrors(t *testing.T) {
	entry := func(more string) string { return "extractors:\n  - {name: a, " + more + "}\n" }
	for name, c := range map[string]struct{ text, says string }{
		"empty":                {"", ":1:1: the file is empty: want extractors"},
		"none":                 {"extractors: []", "there are 0 extractors"},
		"unknown field":        {entry("form: header"), ":2:15: unknown field \"form\": want name, from"},
		"no name":              {"extractors:\n  - {from: header, header: a}\n", "name is missing"},
		"bad name":             {"extractors:\n  - {name: A, from: header, header: a}\n", ":2:12: name \"A\": want 1 to 64"},
		"name twice":           {entry("from: header, header: b") + "  - {name: a, from: header, header: b}\n", ":3:12: the name a stands there twice"},
		"no source":            {entry("header: x"), "from is missing"},
		"another source":       {entry("from: query"), ":2:21: from of extractor a: \"query\": want header, client-address or path"},
		"no header":            {entry("from: header"), "from of extractor a: header: want the header's name"},
		"bad header":           {entry(`from: header, header: "a b"`), ":2:37: header of extractor a: \"a b\": want the name"},
		"bad cost header":      {entry(`from: header, header: a, cost_header: "a:"`), "cost_header of extractor a: \"a:\": want the name"},
		"no proxies":           {entry("from: client-address"), "want the proxies that ask as trusted_proxies"},
		"proxies of no use":    {entry("from: header, header: a, trusted_proxies: [10.0.0.1]"), "trusted_proxies of extractor a: it is of no use with from: header"},
		"no network":           {entry("from: client-address, trusted_proxies: [10.0.0.1, here]"), ":2:65: trusted_proxies[1] of extractor a: \"here\": want a network"},
		"bits of a network":    {entry("from: client-address, trusted_proxies: [10.0.0.1/33]"), "want a network"},
		"bits":                 {entry("from: client-address, trusted_proxies: [10.0.0.1], ipv6_prefix: 129"), "ipv6_prefix of extractor a: 129: want 1 to 128"},
		"half a bit":           {entry("from: client-address, trusted_proxies: [10.0.0.1], ipv6_prefix: 1.5"), "want a whole number from 1 to 128"},
		"bits of no use":       {entry("from: header, header: a, ipv6_prefix: 64"), "ipv6_prefix of extractor a: it is of no use"},
		"segments":             {entry("from: path, segments: 0"), "segments of extractor a: 0: want 1 to 16"},
		"segments of no use":   {entry("from: header, header: a, segments: 1"), "segments of extractor a: it is of no use"},
		"hash of no use":       {entry("from: path, hash: true"), "hash of extractor a: it is of no use"},
		"hash":                 {entry("from: header, header: a, hash: sha512"), "hash \"sha512\": want true or false"},
		"header of no use":     {entry("from: client-address, trusted_proxies: [10.0.0.1], header: a"), "header of extractor a: it is of no use"},
		"missing":              {entry("from: header, header: a, missing: deny"), "missing of extractor a: \"deny\": want refuse or allow"},
		"prefix with controls": {entry(`from: header, header: a, prefix: "a\n"`), "prefix of extractor a: want up to 256 bytes"},
		"long prefix":          {entry("from: header, header: a, prefix: " + strings.Repeat("x", 257)), "prefix of extractor a: want up to 256 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			path := writeExtractors(t, c.text)
			if _, err := check.NewExtractors(path, nil); err == nil || !strings.HasPrefix(err.Error(), path+":") || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want the file and %q", err, c.says)
			}
		})
	}
}

// FuzzExtract: whatever the headers hold, there is a valid key, or an error that says why.
func FuzzExtract(f *testing.F) {
	x := newExtractors(f, everyExtractor)
	names := []string{"by-address", "by-host", "by-key", "by-secret", "by-path", "by-nginx-path"}
	for _, s := range []string{"", "198.51.100.1", "::1", "a, b", "[::1%eth0]:80, 10.0.0.1", "/a/b", "//../%2e%2e/%00", "x\xff\x00", "1,,2", "/%", strings.Repeat("/a", 300), "::ffff:1.2.3.4", "1.2.3.4:99999999"} {
		for i := range names {
			f.Add(uint(i), "127.0.0.1:1", s, "7")
		}
	}
	f.Fuzz(func(t *testing.T, which uint, peer, value, cost string) {
		r := &http.Request{Method: "GET", RemoteAddr: peer, Header: http.Header{}}
		for _, name := range []string{"X-Forwarded-For", "X-Api-Key", "Authorization", "X-Forwarded-Uri", "X-Original-Uri"} {
			r.Header.Add(name, value)
		}
		if cost != "" {
			r.Header.Add("X-Cost", cost)
		}
		req, err := check.Extract(x, names[which%uint(len(names))], r)
		if err != nil {
			if len(err.Error()) > 400 {
				t.Fatalf("an error of %d bytes: %.500s", len(err.Error()), err)
			}
			return
		}
		if err := (api.Event{Key: req.Key, Count: req.Cost}).Validate(); err != nil {
			t.Fatalf("%q from %q makes the request %+v: %v", value, peer, req, err)
		}
	})
}

// FuzzTokensFile: a file is read or refused, and no error shows a part of it.
func FuzzTokensFile(f *testing.F) {
	for _, s := range []string{fourTokens, "", "tokens: []", "tokens:\n- {name: a, token: *x}", "tokens: &a [*a]", "\ufefftokens:\r\n", "{", "tokens: !!binary x", "? a", "tokens:\n  - name: \"", "a: b: c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		const secret = "s3cr3ts3cr3ts3cr3t"
		text = strings.ReplaceAll(text, "checker", secret)
		if err := check.ParseTokens("tokens.yml", []byte(text)); err != nil && (!strings.HasPrefix(err.Error(), "tokens.yml:") || strings.Contains(err.Error(), "s3cr3t") || len(err.Error()) > 400) {
			t.Fatalf("%q: %v", text, err)
		}
	})
}
