package main

import (
	"fmt"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A worker starts while a NATS cluster has too few servers to elect a leader, and publishes once it has.
func TestWorkStartsWithoutAQuorumOfNATS(t *testing.T) {
	t.Parallel()
	cluster, redis := streamtest.OwnNATSCluster(t), "redis://"+streamtest.EmbeddedRedis(t).Addr()
	cluster.Kill(1)
	cluster.Kill(2)
	rules := devRules(t)
	p := startProgram(t, "work", "--redis", redis, "--rules", rules, "--nats", cluster.URL(), "--nats-replicas", "3",
		"--http", "127.0.0.1:0")
	p.until(`"msg":"ready"`)
	cluster.Start(1)
	cluster.Start(2)
	if code, _, errs := runProgram(t, "user:1 100\n", "append", "--redis", redis); code != 0 {
		t.Fatal(errs)
	}
	streamtest.Eventually(t, "the decision is published", func() (bool, string) {
		n := metric(t, p.base(), `streamcounter_transitions_total{rule="api",state="throttled"}`)
		return n == "1", n
	})
}

// While NATS is down, a process that publishes or delivers is not ready. A process that only reads is ready.
func TestReadinessWhileNATSIsAway(t *testing.T) {
	t.Parallel()
	server := streamtest.OwnNATS(t)
	redis := "redis://" + streamtest.EmbeddedRedis(t).Addr()
	rules := devRules(t)
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
			streamtest.Eventually(t, "readiness and metric", func() (bool, string) {
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
