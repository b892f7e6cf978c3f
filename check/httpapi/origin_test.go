package httpapi_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

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
