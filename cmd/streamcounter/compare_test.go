package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

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
