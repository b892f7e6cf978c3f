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
	p := startProgram(t, "serve", "--redis", own.URL(), "--http", "127.0.0.1:0", "--rules",
		testkit.WriteFile(t, "rules.yml", devRulesText))
	p.until(`"msg":"ready"`)
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
	if code, out, _ := runProgram(t, "", args...); code != 0 || !strings.Contains(out, "by: streamcounter bench") {
		t.Errorf("exit code %d, said:\n%s", code, out)
	}
}

func TestBenchRefusesWhatItCannotDo(t *testing.T) {
	for args, want := range map[string]string{
		"":                                     "no server to measure: give --target URL",
		"check":                                `unknown command "check" of streamcounter bench`,
		"--target localhost":                   "--target is localhost: expected http://HOST:PORT",
		"--target http://127.0.0.1:1 --keys 0": "--keys is 0: expected at least 1",
		"--target http://127.0.0.1:1":          "the first call: ",
		"--target http://127.0.0.1:1 --per-call 101": "--per-call is 101: expected 1 to 100",
	} {
		code, out, errs := runProgram(t, "", append([]string{"bench"}, strings.Fields(args)...)...)
		if code == 0 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("bench %s: exit code %d, said %q and %q, want %s", args, code, out, errs, want)
		}
	}
}

func TestCommandLineHasNoPassword(t *testing.T) {
	for _, target := range []string{"redis://me:secret@h:1", "redis://:secret@h:1,redis://:secret@h:2",
		"redis+sentinel://me:secret@h:1/m"} {
		cmd := newBench()
		if err := cmd.ParseFlags([]string{"--redis", target, "--keys=5", "--json"}); err != nil {
			t.Fatal(err)
		}
		got := commandLine(cmd)
		if strings.Contains(got, "secret") || !strings.HasPrefix(got, "bench --json=true --keys 5 --redis ") {
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
