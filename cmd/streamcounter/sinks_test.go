package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// sinks test prints the endpoint's answer, and dev delivers alerts. testdata/rules.txt has the other commands.
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
	expect(t, "sinks test chat --sinks "+file, 0, "sink chat: the endpoint took the sample\n")
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
	status.Store(404)
	expect(t, "sinks test chat --sinks "+file, 1, "sink chat: the endpoint answered 404")

	status.Store(200)
	before := calls.Load()
	d := startDev(t, "--rules", testkit.WriteFile(t, "rules.yml",
		"rules: [{name: api, match: \"*\", windows: [{limit: 10, per: 1s}], alerts: [80%], hold: 10ms}]"),
		"--sinks", file)
	streamtest.Eventually(t, "dev delivers an alert", func() (bool, string) {
		resp, err := http.Get(d.url() + "/v1/check?key=user:1&cost=9")
		testkit.Must(t, err)
		resp.Body.Close()
		return calls.Load() > before, resp.Status
	})
}
