package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/bench/target"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A real server behind a token, and its Redis.
func TestBenchOfAServer(t *testing.T) {
	own := streamtest.OwnRedis(t)
	p := startServe(t, "--redis", own.URL())
	args := []string{"bench", "--target", p.base(), "--redis", own.URL(), "--connections", "3", "--duration", "200ms",
		"--warmup", "0"}
	code, out, errs := runProgram(t, "", append(args, "--json")...)
	var r target.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || errs != "" {
		t.Fatalf("exit code %d, %v, said %q and %q", code, err, out, errs)
	}
	if r.Checks < 1 || r.Admitted < 1 || r.ServerCPUUs == nil || r.RedisCPUUs == nil || *r.RedisCPUUs <= 0 {
		t.Errorf("%+v", r)
	}
	expect(t, strings.Join(args, " "), 0, "by: streamcounter bench")
}

func TestCommandLineHasNoPassword(t *testing.T) {
	for _, target := range []string{"redis://me:secret@h:1", "redis://:secret@h:1,redis://:secret@h:2",
		"redis+sentinel://me:secret@h:1/m"} {
		cmd := newBench()
		testkit.Must(t, cmd.ParseFlags([]string{"--redis", target, "--keys=5", "--json"}))
		got := commandLine(cmd)
		if strings.Contains(got, "secret") || !strings.HasPrefix(got, "bench --json=true --keys 5 --redis ") {
			t.Error(got)
		}
	}
}
