package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/compare"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// compared runs `compare` to its end and reads its JSON.
func compared(t *testing.T, stdin string, want int, args ...string) (list []compare.Comparison, stderr string) {
	t.Helper()
	code, stdout, stderr := runProgram(t, stdin, append([]string{"compare", "--json"}, args...)...)
	var out struct{ Comparisons []compare.Comparison }
	if err := json.Unmarshal([]byte(stdout), &out); err != nil || code != want {
		t.Fatalf("exit code %d, want %d; %v\n%s%s", code, want, err, stdout, stderr)
	}
	return out.Comparisons, stderr
}

func admitted(t *testing.T, c compare.Comparison, algorithm string) int64 {
	t.Helper()
	for _, r := range c.Algorithms {
		if r.Algorithm == algorithm {
			return r.AdmittedRequests
		}
	}
	t.Fatalf("no %s in %+v", algorithm, c)
	return 0
}

func TestCompareBoundary(t *testing.T) {
	list, stderr := compared(t, "", 0, "--boundary")
	if len(list) != 2 || stderr != "" {
		t.Fatalf("%d comparisons, want 2; stderr %q, want none", len(list), stderr)
	}
	for i, gcra := range []int64{60, 95} {
		for name, want := range map[string]int64{"sliding-log": 50, compare.InProcess: 50, compare.Oracle: 50,
			compare.GCRA: gcra} {
			if n := admitted(t, list[i], name); n != want {
				t.Errorf("%s: %s admitted %d, want %d", list[i].Trace.Name, name, n, want)
			}
		}
		if r := list[i].Redis; r == nil || *r != "embedded" {
			t.Errorf("Redis is %v, want embedded", r)
		}
	}
}

// A log at its own times: three days of it take seconds. On a real Redis, and
// with a page.
func TestCompareLog(t *testing.T) {
	url := streamtest.Redis(t)
	page := filepath.Join(t.TempDir(), "page.html")
	list, _ := compared(t, "", 0, "--clf", "testdata/apache_access.log", "--limit", "10", "--per", "1m", "--redis",
		url, "--html", page)
	c := list[0]
	if c.Trace.Requests != 10_000 || c.Trace.Keys != 1753 || c.Trace.RejectedLines != 0 ||
		c.Trace.LastMs-c.Trace.FirstMs < 3*24*time.Hour.Milliseconds() {
		t.Errorf("the trace is %+v", c.Trace)
	}
	if n, want := admitted(t, c, "sliding-log"), admitted(t, c, compare.Oracle); n != want || n == 10_000 {
		t.Errorf("admitted %d, the truth is %d", n, want)
	}
	if r := c.Algorithms[0]; r.RedisCPU == nil || r.BytesPerKey == nil {
		t.Errorf("a real Redis told neither CPU nor memory: %+v", r)
	}
	text, err := os.ReadFile(page)
	testkit.Must(t, err)
	if !strings.Contains(string(text),
		"streamcounter compare --clf testdata/apache_access.log --html "+page+" --json --limit 10 --per 1m0s "+
			"--redis "+url) {
		t.Errorf("the page does not say how to make it again:\n%.2000s", text)
	}
	if files, _ := os.ReadDir(filepath.Dir(page)); len(files) != 1 {
		t.Errorf("it left %v beside the page", files)
	}
}

func TestCompareBadLines(t *testing.T) {
	log := `1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1
rubbish
1.2.3.4 - - [17/Foo/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1
1.2.3.4 - - [17/May/2015:12:05:02 +0200] "GET / HTTP/1.1" 200 1
`
	list, stderr := compared(t, log, 1, "--clf", "-", "--algorithms", "in-process")
	at := time.Date(2015, 5, 17, 10, 5, 2, 0, time.UTC).UnixMilli()
	if tr := list[0].Trace; tr.Requests != 2 || tr.RejectedLines != 2 || tr.Sorted != 1 || tr.FirstMs != at ||
		tr.LastMs != at+1000 {
		t.Errorf("the trace is %+v", tr)
	}
	for _, want := range []string{`stdin:2: bad request: "rubbish"`,
		`stdin:3: bad request: time "17/Foo/2015:10:05:03 +0000", expected one such as`} {
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr lacks %q:\n%s", want, stderr)
		}
	}
}

func TestCompareErrors(t *testing.T) {
	trace := testkit.WriteFile(t, "trace.txt", "1 a\n2 b 51\n")
	badKey := testkit.WriteFile(t, "key.txt", "1 a\x01\n")
	dir := t.TempDir()
	for _, test := range []struct{ args, want string }{
		{"", "no trace: want one of --boundary, --poisson, --clf FILE and --trace FILE"},
		{"--boundary --poisson", "--boundary and --poisson: want one of"},
		{"--boundary=false", "no trace"},
		{"--boundary --algorithms sliding-log,leaky", `--algorithms: "leaky": want some of sliding-log, `},
		{"--boundary --limit 0", "--limit: limit 0: want a whole number from 1"},
		{"--boundary --per 1us", "--per: per 1µs: want 10ms"},
		{"--boundary --per 15ms", "--per is 15ms: --boundary wants at least 20ms"},
		{"--boundary --limit 100001",
			"--limit is 100001: --boundary sends bursts of that many requests, want at most 100000"},
		{"--boundary --window 5/1s", "--window 5/1s and --boundary"},
		{"--poisson --window 5/1s --limit 3", "--window 5/1s and --limit"},
		{"--poisson --window 5", `--window is "5": expected LIMIT/PER`},
		{"--poisson --window 0/1s", "--window 0/1s: limit 0: want"},
		{"--poisson --window 5/1s --window 6/1s", "--window 5/1s --window 6/1s: per 1s: want each span once"},
		{"--boundary --seed 3", "--seed is for --poisson, not for --boundary"},
		{"--poisson --rate 0", "--rate is 0: expected"},
		{"--poisson --requests 0", "--requests is 0: expected"},
		{"--poisson --keys 0", "--keys is 0: expected"},
		{"--poisson --max-cost 51", "--max-cost is 51: expected 1 to 50"},
		{"--trace " + trace, "--trace: " + trace + ":2: cost exceeds limit: 51 is above the smallest limit, 50"},
		{"--trace " + badKey, `--trace: ` + badKey + `:1: bad key: "a\x01" has the control or invisible character`},
		{"--trace /nonexistent", "--trace: open /nonexistent: no such file"},
		{"--clf /dev/null", "--clf: log /dev/null: it has no request"},
		{"--boundary --html " + dir, "--html: " + dir + " is no regular file"},
		{"--boundary --html " + dir + "/no/page.html", `--html: "` + dir + `/no/page.html" cannot be written`},
		{"--boundary --redis embedded:x", "--redis (STREAMCOUNTER_REDIS): "},
		{"--boundary --redis redis://127.0.0.1:1", "--redis (STREAMCOUNTER_REDIS): no Redis answers"},
	} {
		code, stdout, stderr := runProgram(t, "", append([]string{"compare"}, strings.Fields(test.args)...)...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, "streamcounter: "+test.want) {
			t.Errorf("compare %s: exit code %d, want 1 and %s\n%s%s", test.args, code, test.want, stdout, stderr)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) != 0 {
		t.Errorf("they left %v", files)
	}
}

// Ctrl-C in the middle of a run leaves no keys behind, and no half of a page.
func TestCompareInterrupted(t *testing.T) {
	url := streamtest.Redis(t)
	c := streamtest.Connect(t, url)
	keys := func() []string { return c.Keys(t.Context(), "sc-compare-*").Val() }
	dir := t.TempDir()
	p := startProgram(t, "compare", "--poisson", "--requests", "1000000", "--keys", "50", "--redis", url, "--html",
		filepath.Join(dir, "page.html"))
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
	if files, _ := os.ReadDir(dir); len(files) != 0 {
		t.Errorf("it left %v", files)
	}
}

func TestQuote(t *testing.T) {
	for word, want := range map[string]string{"a-b/c:1": "a-b/c:1", "": "''", "a b": "'a b'", "it's": `'it'\''s'`,
		"$x": "'$x'"} {
		if got := quote(word); got != want {
			t.Errorf("%q is quoted %s, want %s", word, got, want)
		}
	}
}
