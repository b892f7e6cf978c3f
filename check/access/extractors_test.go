package access_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func writeExtractors(t testing.TB, text string) string {
	return testkit.WriteFile(t, "extractors.yml", text)
}

func TestExtractorsFileErrors(t *testing.T) {
	entry := func(more string) string { return "extractors:\n  - {name: a, " + more + "}\n" }
	for name, c := range map[string]struct{ text, says string }{
		"empty":         {"", ":1:1: the file is empty: want extractors"},
		"none":          {"extractors: []", "there are 0 extractors"},
		"unknown field": {entry("form: header"), ":2:15: unknown field \"form\": want name, from"},
		"no name":       {"extractors:\n  - {from: header, header: a}\n", "name is missing"},
		"bad name": {"extractors:\n  - {name: A, from: header, header: a}\n",
			":2:12: name \"A\": want 1 to 64"},
		"name twice": {entry("from: header, header: b") + "  - {name: a, from: header, header: b}\n",
			":3:12: the name a is given twice"},
		"no source": {entry("header: x"), "from is missing"},
		"another source": {entry("from: query"),
			":2:21: from of extractor a: \"query\": want header, client-address or path"},
		"no header": {entry("from: header"), "from of extractor a: header: want the header's name"},
		"bad header": {entry(`from: header, header: "a b"`),
			":2:37: header of extractor a: \"a b\": want the name"},
		"bad cost header": {entry(`from: header, header: a, cost_header: "a:"`),
			"cost_header of extractor a: \"a:\": want the name"},
		"no proxies": {entry("from: client-address"), "want the proxies that ask as trusted_proxies"},
		"proxies of no use": {entry("from: header, header: a, trusted_proxies: [10.0.0.1]"),
			"trusted_proxies of extractor a: it is of no use with from: header"},
		"no network": {entry("from: client-address, trusted_proxies: [10.0.0.1, here]"),
			":2:65: trusted_proxies[1] of extractor a: \"here\": want a network"},
		"bits of a network": {entry("from: client-address, trusted_proxies: [10.0.0.1/33]"), "want a network"},
		"more than IPv4 in IPv6": {entry(`from: client-address, trusted_proxies: ["::ffff:0.0.0.0/90"]`),
			"\"::ffff:0.0.0.0/90\": want a network"},
		"bits": {entry("from: client-address, trusted_proxies: [10.0.0.1], ipv6_prefix: 129"),
			"ipv6_prefix 129: want a whole number from 1 to 128"},
		"half a bit": {entry("from: client-address, trusted_proxies: [10.0.0.1], ipv6_prefix: 1.5"),
			"want a whole number from 1 to 128"},
		"bits of no use": {entry("from: header, header: a, ipv6_prefix: 64"),
			"ipv6_prefix of extractor a: it is of no use"},
		"segments": {entry("from: path, segments: 0"), "segments 0: want a whole number from 1 to 16"},
		"segments of no use": {entry("from: header, header: a, segments: 1"),
			"segments of extractor a: it is of no use"},
		"hash of no use": {entry("from: path, hash: true"), "hash of extractor a: it is of no use"},
		"hash":           {entry("from: header, header: a, hash: sha512"), "hash \"sha512\": want true or false"},
		"header of no use": {entry("from: client-address, trusted_proxies: [10.0.0.1], header: a"),
			"header of extractor a: it is of no use"},
		"missing": {entry("from: header, header: a, missing: deny"),
			"missing of extractor a: \"deny\": want refuse or allow"},
		"prefix with controls": {entry(`from: header, header: a, prefix: "a\n"`),
			"prefix of extractor a: want up to 256 bytes"},
		"long prefix": {entry("from: header, header: a, prefix: " + strings.Repeat("x", 257)),
			"prefix of extractor a: want up to 256 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			path := writeExtractors(t, c.text)
			if _, err := access.NewExtractors(path, nil); err == nil || !strings.HasPrefix(err.Error(), path+":") ||
				!strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want the file and %q", err, c.says)
			}
		})
	}
}

// FuzzExtract: whatever the headers hold, there is a valid key, or an error that says why.
func FuzzExtract(f *testing.F) {
	every, err := access.NewExtractors("testdata/extractors.yml", nil)
	testkit.Must(f, err)
	names := []string{"by-address", "by-host", "by-key", "by-secret", "by-path", "by-nginx-path"}
	for _, s := range []string{"", "198.51.100.1", "::1", "a, b", "[::1%eth0]:80, 10.0.0.1", "/a/b",
		"//../%2e%2e/%00", "x\xff\x00", "1,,2", "/%", strings.Repeat("/a", 300), "::ffff:1.2.3.4", "1.2.3.4:99999999"} {
		for i := range names {
			f.Add(uint(i), "127.0.0.1:1", s, "7")
		}
	}
	f.Fuzz(func(t *testing.T, which uint, peer, value, cost string) {
		r := &http.Request{Method: "GET", RemoteAddr: peer, Header: http.Header{}}
		for _, name := range []string{"X-Forwarded-For", "X-Api-Key", "Authorization", "X-Forwarded-Uri",
			"X-Original-Uri"} {
			r.Header.Add(name, value)
		}
		if cost != "" {
			r.Header.Add("X-Cost", cost)
		}
		req, _, err := every.Extract(names[which%uint(len(names))], r)
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
	for _, s := range []string{fourTokens, "", "tokens: []", "tokens:\n- {name: a, token: *x}", "tokens: &a [*a]",
		"\ufefftokens:\r\n", "{", "tokens: !!binary x", "? a", "tokens:\n  - name: \"", "a: b: c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		const secret = "s3cr3ts3cr3ts3cr3t"
		text = strings.ReplaceAll(text, "checker", secret)
		if err := access.ParseTokens("tokens.yml", []byte(text)); err != nil &&
			(!strings.HasPrefix(err.Error(), "tokens.yml:") || strings.Contains(err.Error(), "s3cr3t") ||
				len(err.Error()) > 400) {
			t.Fatalf("%q: %v", text, err)
		}
	})
}
