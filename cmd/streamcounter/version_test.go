package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// /metrics says what the process was built from, as `version` does.
func TestBuildInfo(t *testing.T) {
	registry := prometheus.NewRegistry()
	build{Version: "1.2.3", Commit: "abc", Modified: true, Go: "go1.99", Contract: 1}.register(registry)
	testkit.Must(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP streamcounter_build_info 1, with the version, the commit and the version of Go that the process was built with.
# TYPE streamcounter_build_info gauge
streamcounter_build_info{commit="abc",go_version="go1.99",version="1.2.3"} 1
`)))
}

// Each command that runs on exposes it.
func TestEachProcessExposesBuildInfo(t *testing.T) {
	b := thisBuild()
	sample := fmt.Sprintf("streamcounter_build_info{commit=%q,go_version=%q,version=%q}", b.Commit, b.Go, b.Version)
	d := startDev(t)
	for command, args := range map[string][]string{
		"serve": {"--redis", fmt.Sprintf("redis://127.0.0.1:%d", d.redis)},
		"work": {"--redis", fmt.Sprintf("redis://127.0.0.1:%d", d.redis),
			"--nats", fmt.Sprintf("nats://127.0.0.1:%d", d.nats)},
	} {
		addr := testkit.FreeAddr(t)
		rules := testkit.WriteFile(t, "rules.yml", devRulesText)
		startProgram(t, append([]string{command, "--rules", rules, "--http", addr}, args...)...).until("ready")
		if got := metric(t, "http://"+addr, sample); got != "1" {
			t.Errorf("%s has %s", command, got)
		}
	}
	if got := metric(t, fmt.Sprintf("http://127.0.0.1:%d", d.http), sample); got != "1" {
		t.Errorf("dev has %s", got)
	}
}
