package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Profiles and the log level are served to this machine only. A changed log level applies to everything that is
// logged after that.
func TestDebugListener(t *testing.T) {
	port := testkit.FreePort(t)
	d := startDev(t, "--debug", fmt.Sprintf("127.0.0.1:%d", port), "--log-level", "error")
	ask := func(method, path, body, host string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, fmt.Sprintf("http://127.0.0.1:%d%s", port, path),
			strings.NewReader(body))
		testkit.Must(t, err)
		r.Host = host
		resp, err := http.DefaultClient.Do(r)
		testkit.Must(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		testkit.Must(t, err)
		return resp.StatusCode, string(text)
	}
	for _, c := range []struct {
		method, path, body, host string
		status                   int
		says                     string
	}{
		{"GET", "/debug/log-level", "", "", 200, "error\n"},
		{"PUT", "/debug/log-level", "loud", "", 400, `"loud", expected debug, info, warn or error`},
		{"PUT", "/debug/log-level", "debug\n", "", 200, "debug\n"},
		{"GET", "/debug/log-level", "", "", 200, "debug\n"},
		{"GET", "/debug/pprof/", "", "", 200, "goroutine"},
		{"GET", "/debug/pprof/heap?debug=1", "", "", 200, "heap profile"},
		{"GET", "/debug/pprof/profile?seconds=1", "", "", 200, ""},
		{"GET", "/debug/pprof/cmdline", "", "", 404, ""}, // a command line can contain passwords
		{"GET", "/debug/pprof/heap?debug=1", "", "rebound.example", 403, "forbidden"},
		{"PUT", "/debug/log-level", "error", "rebound.example", 403, "forbidden"},
		{"GET", "/v1/throttled", "", "", 404, ""},
	} {
		status, text := ask(c.method, c.path, c.body, c.host)
		if status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s %s %s: %d %.200s, want %d and %q", c.method, c.path, c.body, status, text, c.status, c.says)
		}
	}
	d.until("the log level was changed")
	d.interrupt()
	d.until("stopping")
}

func TestDebugIsForThisMachineAlone(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:6060", ":6060", "192.0.2.1:6060", "6060"} {
		code, _, stderr := runProgram(t, "", "serve", "--debug", addr, "--rules", testkit.WriteFile(t, "rules.yml",
			devRulesText), "--http", "127.0.0.1:0", "--grpc", "")
		if code == 0 || !strings.Contains(stderr, "--debug") || !strings.Contains(stderr, addr) ||
			!strings.Contains(stderr, "this machine alone") {
			t.Errorf("%s: exit code %d, %s", addr, code, stderr)
		}
	}
}
