package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

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
