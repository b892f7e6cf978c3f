package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/bench"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestBenchAsText(t *testing.T) {
	code, out, errs := runProgram(t, "", "bench", "append", "check", "--operations", "300", "--keys", "10",
		"--warmup", "0")
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d, said %q", code, errs)
	}
	for _, want := range []string{
		"streamcounter bench append check --keys 10 --operations 300 --warmup 0s\n",
		"Redis unknown at embedded (miniredis: time only", "stream-node-max-bytes unknown", "10 keys, uniform",
		"  append  ", "XADD", "  check  ", "sliding-log", "GET", "empty script", "GCRA", "100.0% admitted, 0.0% denied",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	for _, other := range []string{"fold", "peek"} {
		if strings.Contains(out, other) {
			t.Errorf("it speaks of %s, which nobody asked for:\n%s", other, out)
		}
	}
}

func TestBenchAsJSON(t *testing.T) {
	url := streamtest.Redis(t)
	code, out, errs := runProgram(t, "", "bench", "--json", "--redis", url, "--operations", "500", "--keys", "20",
		"--entries", "10", "--limit", "10", "--partitions", "1", "--batch=100", "--seed", "7", "--warmup", "20ms",
		"--algorithm", "all")
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d, said %q", code, errs)
	}
	var r bench.Report
	testkit.Must(t, json.Unmarshal([]byte(out), &r))
	s := r.Settings
	if r.Redis != url || r.RedisVersion == "" || s.Keys != 20 || s.EntriesPerKey != 10 || s.Limit != 10 ||
		s.Partitions != 1 || s.Batch != 100 || s.Seed != 7 || s.PerMs != 60_000 {
		t.Errorf("the head is %+v", r)
	}
	seen := map[string]int{}
	for _, p := range r.Parts {
		seen[p.Operation]++
		if p.Operations != 500 || p.RedisCPUUsPerOp == nil {
			t.Errorf("%s %s: %+v", p.Operation, p.Algorithm, p.Figures)
		}
		if p.Operation == bench.Check && p.Algorithm == "sliding-log" &&
			(*p.Denied != 500 || *p.UsedPerKeyBefore != 10) {
			t.Errorf("of 500 checks of full keys %d were denied; used %v", *p.Denied, *p.UsedPerKeyBefore)
		}
	}
	if seen[bench.Append] != 1 || seen[bench.Fold] == 0 || seen[bench.Fold] != seen[bench.Check] ||
		seen[bench.Peek] != seen[bench.Check] {
		t.Errorf("it measured %v", seen)
	}
	if left := benchKeys(t, url); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
}

func TestBenchRefusesWhatItCannotDo(t *testing.T) {
	for want, args := range map[string]string{
		`operation "chek": expected append, fold, check, peek`:          "chek",
		`--algorithm is "none": expected all or some of`:                "--algorithm none",
		`--keys is 0: expected more`:                                    "--keys 0",
		`--per is 0s: expected more`:                                    "--per 0",
		`--keys is -3: expected 1 to`:                                   "--keys -3",
		`--limit is 5 and --deny is given`:                              "--limit 5 --deny",
		`--batch (STREAMCOUNTER_BATCH) is "0": expected a whole number`: "--batch 0",
		`--redis (STREAMCOUNTER_REDIS): expected`:                       "--redis embedded:x",
		`no Redis answers at redis://127.0.0.1:1`:                       "--redis redis://127.0.0.1:1",
	} {
		code, out, errs := runProgram(t, "", append([]string{"bench"}, strings.Fields(args)...)...)
		if code != 1 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("bench %s: exit code %d, said %q and %q, want %s", args, code, out, errs, want)
		}
	}
}

// Ctrl-C ends it cleanly, with what was measured until then.
func TestBenchIsInterrupted(t *testing.T) {
	own := streamtest.OwnRedis(t)
	p := startProgram(t, "bench", "append", "check", "--redis", own.URL(), "--operations", "1000000000", "--batch",
		"1", "--warmup", "0")
	streamtest.Eventually(t, 20*time.Second, "it appends", func() (bool, string) {
		left := benchKeys(t, own.URL())
		return len(left) > 0, fmt.Sprint(left)
	})
	if code := p.interrupt(); code != 130 || !strings.Contains(p.text(), "interrupted") ||
		!strings.Contains(p.text(), "operations") {
		t.Errorf("exit code %d, said:\n%s", code, p.text())
	}
	if left := benchKeys(t, own.URL()); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
}

// A Redis that goes away is an error that is seen.
func TestBenchLosesItsRedis(t *testing.T) {
	own := streamtest.OwnRedis(t)
	p := startProgram(t, "bench", "check", "--redis", own.URL(), "--duration", "1h", "--warmup", "0")
	streamtest.Eventually(t, 20*time.Second, "it checks", func() (bool, string) {
		left := benchKeys(t, own.URL())
		return len(left) > 0, fmt.Sprint(left)
	})
	own.Kill()
	<-p.done
	if code := p.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(p.text(),
		"streamcounter: check sliding-log: ") {
		t.Errorf("exit code %d, said:\n%s", code, p.text())
	}
}

func TestCommandLineHasNoPassword(t *testing.T) {
	for _, target := range []string{"redis://me:secret@h:1", "redis://:secret@h:1,redis://:secret@h:2",
		"redis+sentinel://me:secret@h:1/m"} {
		cmd := newBench()
		if err := cmd.ParseFlags([]string{"--redis", target, "--keys=5"}); err != nil {
			t.Fatal(err)
		}
		got := commandLine(cmd, "check")
		if strings.Contains(got, "secret") || !strings.HasPrefix(got, "streamcounter bench check --keys 5 --redis ") {
			t.Error(got)
		}
	}
}

func benchKeys(t *testing.T, url string) []string {
	t.Helper()
	keys, err := streamtest.Connect(t, url).Keys(t.Context(), "sc-bench-*").Result()
	testkit.Must(t, err)
	return keys
}
