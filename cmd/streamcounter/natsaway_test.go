package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// While NATS is down, a process that publishes or delivers is not ready. A process that only reads is ready.
func TestReadinessWhileNATSIsAway(t *testing.T) {
	t.Parallel()
	server := streamtest.OwnNATS(t)
	redis := "redis://" + streamtest.EmbeddedRedis(t).Addr()
	rules := testkit.WriteFile(t, "rules.yml", devRulesText)
	sinks := testkit.WriteFile(t, "sinks.yml", "sinks: [{name: chat, type: slack, url: \"http://127.0.0.1:1\"}]")
	ready := map[*process]int{} // process → status while NATS is down
	for command, c := range map[string]struct {
		args   []string
		status int
	}{
		"work":  {[]string{"--redis", redis, "--rules", rules}, 503},
		"serve": {[]string{"--redis", redis, "--rules", rules}, 200},
		"sinks": {[]string{"--sinks", sinks}, 503},
	} {
		p := startProgram(t, append(c.args, command, "--nats", server.URL(), "--http", "127.0.0.1:0")...)
		p.until(`"msg":"ready"`)
		ready[p] = c.status
	}
	want := func(connected string, status func(away int) int) {
		t.Helper()
		for p, away := range ready {
			streamtest.Eventually(t, 30*time.Second, "readiness and metric", func() (bool, string) {
				code, _ := request(t, "GET", p.base()+"/readyz", "")
				have := metric(t, p.base(), "streamcounter_nats_connected")
				return code == status(away) && have == connected, fmt.Sprint(code, " ", have)
			})
		}
	}
	server.Stop()
	want("0", func(away int) int { return away })
	server.Start()
	want("1", func(int) int { return 200 })
}
