package main

import (
	"fmt"
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
		resp, text := call(t, http.DefaultClient, c.method, fmt.Sprintf("http://127.0.0.1:%d%s", port, c.path), c.body,
			"Host: "+c.host)
		if resp.StatusCode != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%+v: %d %.200s", c, resp.StatusCode, text)
		}
	}
	d.until("the log level was changed")
	d.interrupt()
	d.until("stopping")
}
