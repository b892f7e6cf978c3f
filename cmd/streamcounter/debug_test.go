package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Profiles and the log level are served to this machine only. A changed log level applies to everything that is
// logged after that.
func TestDebugListener(t *testing.T) {
	at := testkit.FreeAddr(t)
	d := startDev(t, "--debug", at, "--log-level", "error")
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
		resp, text := call(t, http.DefaultClient, c.method, "http://"+at+c.path, c.body,
			"Host: "+c.host)
		if resp.StatusCode != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%+v: %d %.200s", c, resp.StatusCode, text)
		}
	}
	d.until("the log level was changed")
	d.interrupt()
	d.until("stopping")
}
