package httpapi_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// Every route answers only the tokens with its scope. A path that does not exist needs a token too.
func TestRoutesWantTheirScope(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), rule("user", nil,
		windows.Window{Limit: 1000, Per: time.Minute}))
	router := httpapi.NewRouter(newTokens(t), w.server.Routes(nil)...)
	all := map[string]string{"checker": checker, "appender": appender, "reader": reader, "operator": operator,
		"nobody": "", "stranger": "stranger-0123456789", "basic": operator}
	for _, c := range []struct {
		method, path, body string
		status             int // for those who may
		may                string
	}{
		{"GET", "/v1/check?key=user:1", "", 200, "checker operator"},
		{"HEAD", "/v1/check?key=user:1", "", 200, "checker operator"},
		{"POST", "/v1/check", `{"key":"user:1"}`, 200, "checker operator"},
		{"POST", "/v1/events", `[{"key":"user:1"}]`, 202, "appender operator"},
		{"GET", "/v1/keys/user:1", "", 200, "reader operator"},
		{"GET", "/v1/keys/user:1?values=9", "", 200, "operator"},
		{"DELETE", "/v1/keys/user:1", "", 200, "operator"},
		{"GET", "/v1/throttled", "", 200, "reader operator"},
		{"GET", "/v1/overrides", "", 200, "operator"},
		{"PUT", "/v1/overrides/user:1", `{"block":true}`, 200, "operator"},
		{"DELETE", "/v1/overrides/user:1", "", 200, "operator"},
		{"GET", "/openapi.json", "", 200, "reader operator"},
		{"GET", "/healthz", "", 200, "checker appender reader operator nobody stranger basic"},
		{"GET", "/readyz", "", 200, "checker appender reader operator nobody stranger basic"},
		{"GET", "/", "", 404, "checker appender reader operator"},
		{"GET", "/v1/check/", "", 404, "checker appender reader operator"},
		{"GET", "//v1/check?key=user:1", "", 404, "checker appender reader operator"},
		{"GET", "/v1/../v1/throttled", "", 404, "checker appender reader operator"},
		{"PUT", "/v1/check", "", 405, "checker appender reader operator"},
		{"POST", "/healthz", "", 405, "checker appender reader operator"},
		{"GET", "/v1/keys/../throttled", "", 404, "reader operator"}, // a key that no rule matches
	} {
		for who, bearer := range all {
			for _, header := range []string{"Authorization", access.TokenHeader} {
				r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
				if who == "basic" {
					r.Header.Set("Authorization", "Basic "+bearer)
				} else if bearer != "" && header == "Authorization" {
					r.Header.Set(header, "bearer "+bearer)
				} else if bearer != "" {
					r.Header.Set(header, bearer)
					r.Header.Set("Authorization", "Bearer of-the-application")
				}
				rec := httptest.NewRecorder()
				router.ServeHTTP(rec, r)
				want, challenge := http.StatusForbidden,
					`Bearer realm="streamcounter", error="insufficient_scope", scope="`
				switch {
				case strings.Contains(c.may, who):
					want, challenge = c.status, ""
				case who == "nobody", who == "basic":
					want, challenge = http.StatusUnauthorized, `Bearer realm="streamcounter"`
				case who == "stranger":
					want, challenge = http.StatusUnauthorized, `Bearer realm="streamcounter", error="invalid_token"`
				}
				if got := rec.Header().Get("WWW-Authenticate"); rec.Code != want ||
					!strings.HasPrefix(got, challenge) || (challenge == "") != (got == "") {
					t.Errorf("%s %s as %s: %d, %q, want %d, %q: %s", c.method, c.path, who, rec.Code, got, want,
						challenge, rec.Body)
				}
			}
		}
	}
}

// A proxy that chose the status of denials cannot take a refusal for a denial, and the log has each reason once.
func TestRefusalsAreNoDenials(t *testing.T) {
	var log bytes.Buffer
	ctx := httpapi.WithLog(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	routes := []httpapi.Route{{Method: "GET", Path: "/v1/check", Scope: access.ScopeCheck, Serve: ok},
		{Method: "GET", Path: "/v1/keys/", Scope: access.ScopeRead, Serve: ok}}
	guarded, open := httpapi.NewRouter(newTokens(t), routes...), httpapi.NewRouter(nil, routes...)
	w := newWorld(t, streamtest.Connect(t, nobody), rule("job", nil,
		windows.Window{Limit: 2, Per: time.Minute, InFlight: true}))
	served := httpapi.NewRouter(nil, w.server.Routes(nil)...)
	for _, c := range []struct {
		router        *httpapi.Router
		target, token string
		status        int
		reason        string // empty: the log has it already
	}{
		{guarded, "/v1/check?key=user:1&deny_status=403", "", 500,
			"this needs a token, as Authorization: Bearer TOKEN"},
		{guarded, "/v1/check?key=user:2&deny_status=401", "", 500, ""},
		{guarded, "/v1/check?key=user:2", "", 401, ""},
		{guarded, "/v1/check?deny_status=403", "stranger-0123456789", 500, "the token is not known"},
		{guarded, "/v1/check?deny_status=403", reader, 500, "the token prometheus lacks the scope check"},
		{guarded, "/v1/keys/1?deny_status=403", checker, 403, "lacks the scope read"},
		{guarded, "/v1/keys/2", checker, 403, ""},
		{guarded, "/v1/check?deny_status=403", checker, 200, ""},
		{open, "/v1/check?deny_status=403", "", 500, "a page of another site"},
		{open, "/v1/check?deny_status=403&x=2", "", 500, ""},
		{served, "/v1/check?key=job:1&deny_status=403", "", 403, "key takes reservations only"},
		{served, "/v1/check?key=job:2&deny_status=403", "", 403, ""},
		{served, "/v1/check?key=job:2", "", 400, ""},
	} {
		log.Reset()
		r := httptest.NewRequestWithContext(ctx, "GET", c.target, nil)
		r.Header.Set(access.TokenHeader, c.token)
		if c.router == open {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
		}
		rec := httptest.NewRecorder()
		c.router.ServeHTTP(rec, r)
		if rec.Code != c.status || !strings.Contains(log.String(), c.reason) || (c.reason == "") != (log.Len() == 0) {
			t.Errorf("%s with %q: %d, want %d; log %q, want %q", c.target, c.token, rec.Code, c.status, log.String(),
				c.reason)
		}
	}
}

// A page in a browser on this machine can send requests to a server without tokens.
func TestForeignPagesAreRefused(t *testing.T) {
	router := httpapi.NewRouter(nil, httpapi.Route{Method: "GET", Path: "/v1/check", Scope: access.ScopeCheck,
		Serve: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})})
	server := httptest.NewServer(router)
	defer server.Close()
	port := server.URL[strings.LastIndexByte(server.URL, ':'):]
	for _, c := range []struct {
		host, header, value string
		status              int
	}{
		{"127.0.0.1" + port, "", "", 200}, {"localhost" + port, "", "", 200}, {"LOCALHOST", "", "", 200},
		{"[::1]" + port, "", "", 200},
		{"127.0.0.1" + port, "Origin", "http://127.0.0.1" + port, 200},
		{"127.0.0.1" + port, "Sec-Fetch-Site", "same-origin", 200},
		{"127.0.0.1" + port, "Sec-Fetch-Site", "none", 200},
		{"127.0.0.1" + port, "Origin", "https://evil.example", 403}, {"127.0.0.1" + port, "Origin", "null", 403},
		{"127.0.0.1" + port, "Origin", "http://127.0.0.1:1", 403},
		{"127.0.0.1" + port, "Sec-Fetch-Site", "cross-site", 403}, {"127.0.0.1" + port, "Sec-Fetch-Site", "same-site",
			403},
		{"evil.example" + port, "", "", 403}, {"evil.example" + port, "Origin", "http://evil.example" + port, 403},
		{"127.0.0.1.evil.example", "", "", 403},
	} {
		r, err := http.NewRequestWithContext(context.Background(), "GET", server.URL+"/v1/check", nil)
		testkit.Must(t, err)
		r.Host = c.host
		if c.header != "" {
			r.Header.Set(c.header, c.value)
		}
		a, err := http.DefaultClient.Do(r)
		testkit.Must(t, err)
		_, _ = io.Copy(io.Discard, a.Body)
		_ = a.Body.Close()
		if a.StatusCode != c.status {
			t.Errorf("Host %s, %s %s: %d, want %d", c.host, c.header, c.value, a.StatusCode, c.status)
		}
	}
}
