package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// sinks check describes a file or names its mistake, sinks test prints the endpoint's answer, and dev delivers
// alerts.
func TestSinksCommands(t *testing.T) {
	var status atomic.Int64
	var calls atomic.Int64
	status.Store(200)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.WriteHeader(int(status.Load()))
		fmt.Fprint(w, "no such channel at /secret-path")
	}))
	t.Cleanup(server.Close)
	file := testkit.WriteFile(t, "sinks.yml", fmt.Sprintf(
		"sinks:\n  - {name: chat, type: slack, url: %q, levels: [80]}\n", server.URL+"/secret-path"))
	code, out, errs := runProgram(t, "", "sinks", "check", file)
	if want := "chat: slack at " + server.URL + "; all rules, all keys, levels 80%\n"; code != 0 || out != want {
		t.Errorf("exit code %d\n%s%s\nwant %s", code, out, errs, want)
	}
	bad := testkit.WriteFile(t, "sinks.yml", "sinks:\n  - {name: chat, type: slak, url: \"https://e.com\"}\n")
	code, _, errs = runProgram(t, "", "sinks", "check", bad)
	if code != 1 || !strings.Contains(errs, "sinks.yml:2:24: type of sink chat: want webhook, alertmanager or slack") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	code, out, errs = runProgram(t, "", "sinks", "test", "chat", "--sinks", file)
	if code != 0 || out != "sink chat: the endpoint took the sample\n" || calls.Load() != 1 {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	status.Store(404)
	code, _, errs = runProgram(t, "", "sinks", "test", "chat", "--sinks", file)
	if code != 1 || !strings.Contains(errs, "sink chat: the endpoint answered 404") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	code, _, errs = runProgram(t, "", "sinks", "test", "other", "--sinks", file)
	if code != 1 || !strings.Contains(errs, `no sink "other"`) {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	if code, _, errs = runProgram(t, "", "sinks"); code != exitUsage ||
		!strings.Contains(errs, "missing --sinks FILE") {
		t.Errorf("exit code %d\n%s", code, errs)
	}

	status.Store(200)
	before := calls.Load()
	d := startDev(t, "--rules", testkit.WriteFile(t, "rules.yml",
		"rules: [{name: api, match: \"*\", windows: [{limit: 10, per: 1s}], alerts: [80%], hold: 10ms}]"),
		"--sinks", file)
	streamtest.Eventually(t, 30*time.Second, "dev delivers an alert", func() (bool, string) {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/v1/check?key=user:1&cost=9", d.http))
		testkit.Must(t, err)
		resp.Body.Close()
		return calls.Load() > before, resp.Status
	})
}
