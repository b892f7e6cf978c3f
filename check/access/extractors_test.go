package access_test

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func writeExtractors(t testing.TB, text string) string {
	return testkit.WriteFile(t, "extractors.yml", text)
}

// A path that the backend serves below /a counts under /a or is refused, in whichever spelling it climbs out of it.
func TestPathsDoNotClimbOutOfTheirLimit(t *testing.T) {
	var backend http.ServeMux
	backend.HandleFunc("/a/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	every, err := access.NewExtractors(writeExtractors(t, "extractors:\n  - {name: p, from: path}\n"), nil)
	testkit.Must(t, err)
	served := 0
	try := func(path, want string) {
		t.Helper()
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n")))
		testkit.Must(t, err)
		w := httptest.NewRecorder()
		backend.ServeHTTP(w, r)
		r.Header.Set("X-Forwarded-Uri", path)
		req, _, err := every.Extract("p", r)
		if w.Code == http.StatusOK {
			served++
			if err == nil && req.Key != "/a" {
				t.Errorf("%s is served below /a and counts under %s", path, req.Key)
			}
		}
		if want == "" && !errors.Is(err, api.ErrBadRequest) || want != "" && req.Key != want {
			t.Errorf("%s: key %q, error %v, want the key %q", path, req.Key, err, want)
		}
	}
	slashes := []string{"/", "%2f", "%2F", `\`, "%5c", "%5C"}
	for _, before := range slashes {
		for _, dots := range []string{"..", "%2e.", ".%2E", "%2e%2e"} {
			for _, after := range append(slashes, "", ";", ";x/", "%3b/", "%3Bx%2f", "#", "%23/x", "%3f/x",
				"?q") {
				try(fmt.Sprintf("/a%s%s%sk1", before, dots, after), map[bool]string{true: "/a"}[after == ""])
				try(fmt.Sprintf("/a/b;x%s%s%s", before, dots, after), "")
			}
		}
	}
	try("/..", "")
	try("/k1#/../a/x", "") // a # is a part of Caddy's paths
	for _, same := range []string{"/a", "//a/", "/./a/b", "/%61/b", "/a;x=1/b", "/a/b;..", "/a/...", "/a/..b", "/a/b..",
		"/a/.;x/k1", "/a#b", `/\a`, "/a/k1?next=/../b", "/a/%2f/k1", "/a/%252e%252e/k1", "/a/"} {
		try(same, "/a")
	}
	if served < 100 {
		t.Errorf("the backend served %d paths, want most of those below /a", served)
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
