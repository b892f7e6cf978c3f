package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/compare"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A log is replayed with the rules of a file: the output shows who would have been throttled, at the log's own times.
func TestCompareRules(t *testing.T) {
	t.Parallel()
	rules := testkit.WriteFile(t, "rules.yml",
		"rules:\n  - {name: web, match: \"ip:*\", windows: [{limit: 40, per: 1m}]}\n")
	line := "compare --clf testdata/apache_access.log --rules " + rules
	expect(t, line, 0, "10000 requests by 1753 keys", "Rule web would have denied ", "ip:75.97.9.59",
		"2015-05-18 08:05:21")
	var out compare.Rollout
	text := expect(t, line+" --json", 0)
	testkit.Must(t, json.Unmarshal([]byte(text), &out))
	if len(out.Rules) != 1 || len(out.Rules[0].Throttled) != 6 {
		t.Errorf("%s", text)
	}
}

func TestCompareErrors(t *testing.T) {
	trace := testkit.WriteFile(t, "trace.txt", "1 a\n2 b 51\n")
	badKey := testkit.WriteFile(t, "key.txt", "1 a\x01\n")
	for _, test := range []struct{ args, want string }{
		{"--boundary --trace x", "--boundary and --trace: want one of"},
		{"--boundary=false", "no trace"},
		{"--boundary --algorithms sliding-log,leaky", `--algorithms: "leaky": want some of sliding-log, `},
		{"--boundary --window 0/1s", "--window 0/1s: limit 0: want a whole number from 1"},
		{"--boundary --window 1/1us", "--window 1/1us: per 1µs: want 10ms"},
		{"--boundary --window 1/15ms", "--window has the length 15ms: --boundary wants at least 20ms"},
		{"--boundary --window 100001/1s",
			"--window has the limit 100001: --boundary sends bursts of that many requests, want at most 100000"},
		{"--boundary --window 5/1s --window 9/2s", "--boundary with 2 windows"},
		{"--boundary --window 5", `--window is "5": expected LIMIT/PER`},
		{"--boundary --window 5/1s --window 6/1s", "--window 5/1s --window 6/1s: per 1s: want each span once"},
		{"--trace " + trace, "--trace: " + trace + ":2: cost 51 is above the smallest limit, 50"},
		{"--trace " + badKey, `--trace: ` + badKey + `:1: bad key: "a\x01" has the control or invisible character`},
		{"--trace /nonexistent", "--trace: open /nonexistent: no such file"},
		{"--clf /dev/null --rules /nonexistent", "--rules: load rules: open /nonexistent"},
		{"--clf x --rules x --window 1/1s", "--rules and --window: expected one of them"},
		{"--rules x", "--rules: load rules: open x"},
		{"--clf /dev/null", "--clf: log /dev/null: it has no request"},
		{"--boundary --redis redis://127.0.0.1:1", "--redis: no Redis answers"},
	} {
		expect(t, "compare "+test.args, failure, "streamcounter: "+test.want)
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
	streamtest.Eventually(t, 30*time.Second, "counts of 50 keys", func() (bool, string) {
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
