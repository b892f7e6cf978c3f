package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/bench/pipeline"
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

// A run measures events at a rate and a backlog, with a real worker, and leaves nothing behind.
func TestBenchPipeline(t *testing.T) {
	t.Setenv("TEST_BINARY_IS_STREAMCOUNTER", "1") // the worker that it starts is this program
	server := streamtest.OwnRedis(t)
	url := "redis://" + strings.TrimPrefix(server.Addr(), "redis://")
	for _, args := range [][]string{
		{"--rate", "500", "--duration", "1s", "--warmup", "100ms"},
		{"--drain", "3000", "--algorithm", "sliding-buckets"},
	} {
		drained := args[0] == "--drain"
		args = append([]string{"bench", "pipeline", "--redis", url, "--keys", "100", "--json"}, args...)
		code, out, errs := runProgram(t, "", args...)
		if code != 0 || errs != "" {
			t.Fatalf("%v: exit code %d, said %q", args, code, errs)
		}
		var r pipeline.Report
		testkit.Must(t, json.Unmarshal([]byte(out), &r))
		// On a busy machine the worker may be some events behind when the load ends.
		if r.RedisCPUUs <= 0 || r.WorkerCPUUs <= 0 || r.EventsPerS <= 0 || r.Unread > r.Events/5 {
			t.Errorf("%v: %+v", args, r)
		}
		if d := r.Decisions; !drained && (d == nil || d.Count == 0 || d.P50Us == 0 || r.Events < 400) {
			t.Errorf("%v: %+v, decisions %+v", args, r, d)
		}
		if drained && r.Events != 3000 {
			t.Errorf("%v: %+v", args, r)
		}
	}
	// A worker that ends at once ends the run, with what the worker said.
	t.Setenv("STREAMCOUNTER_BATCH", "none")
	expect(t, "bench pipeline --redis "+url+" --drain 10", failure, "the worker ended; it said:", `"none"`)
	left, err := streamtest.Connect(t, url).Keys(t.Context(), "sc-bench-*").Result()
	if err != nil || len(left) != 0 {
		t.Errorf("these keys are left: %v, %v", left, err)
	}
}

// A run leaves no worker behind when its terminal closes or it is killed, and after SIGHUP no keys.
func TestBenchPipelineEnds(t *testing.T) {
	withHangUp(t)
	t.Setenv("TEST_BINARY_IS_STREAMCOUNTER", "1")
	server := streamtest.OwnRedis(t)
	c := streamtest.Connect(t, server.URL())
	clients := func() int { return strings.Count(c.ClientList(t.Context()).Val(), "\n") }
	own := clients()
	for _, end := range []os.Signal{os.Kill, hangUp} {
		p := startProgram(t, "bench", "pipeline", "--redis", server.URL(), "--duration", "1m")
		streamtest.Eventually(t, "the worker folds", func() (bool, string) {
			keys := c.Keys(t.Context(), "sc-bench-*:levels").Val()
			return len(keys) > 0, ""
		})
		code := p.EndsOn(end)
		streamtest.Eventually(t, "nobody is connected", func() (bool, string) {
			return clients() == own, c.ClientList(t.Context()).Val()
		})
		if left := c.Keys(t.Context(), "sc-bench-*").Val(); end == hangUp && (code != 130 || len(left) > 0) {
			t.Errorf("after SIGHUP: exit code %d, keys %.5v", code, left)
		}
		testkit.Must(t, c.FlushAll(t.Context()).Err())
	}
}

// Ctrl-C in the middle of a run leaves no keys behind.
func TestCompareInterrupted(t *testing.T) {
	t.Parallel()
	url := streamtest.Redis(t)
	c := streamtest.Connect(t, url)
	keys := func() []string { return c.Keys(t.Context(), "sc-compare-*").Val() }
	var trace strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&trace, "%d user:%d\n", i*10, i%100)
	}
	p := startProgram(t, "compare", "--trace", testkit.WriteFile(t, "trace.txt", trace.String()), "--redis", url)
	streamtest.Eventually(t, "counts of 50 keys", func() (bool, string) {
		n := len(keys())
		return n > 50, fmt.Sprintf("%d keys", n)
	})
	if code := p.interrupt(); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	if text := p.text(); text != "" {
		t.Errorf("it said %q", text)
	}
	if left := keys(); len(left) > 0 {
		t.Errorf("it left %d keys: %.5v", len(left), left)
	}
}
