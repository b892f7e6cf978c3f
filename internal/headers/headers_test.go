package headers_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/headers"
)

// number returns a parameter of a policy in a header.
func number(t *rapid.T, h http.Header, header, policy, param string) (n int64, found bool) {
	list, err := httpsfv.UnmarshalList(h.Values(header))
	if err != nil {
		t.Fatalf("%s: %q: %v", header, h.Get(header), err)
	}
	for _, member := range list {
		if it := member.(httpsfv.Item); it.Value == policy {
			if v, _ := it.Params.Get(param); found {
				t.Fatalf("%s has %s twice: %q", header, policy, h.Get(header))
			} else {
				n, found = v.(int64), true
			}
		}
	}
	return n, found
}

// A name ties an item of RateLimit to its policy, so it comes once: for the key that has least left. A proxy refuses an
// answer whose headers exceed its buffer (nginx: 4 KB), so only the policies with the least left are there.
func TestHeadersHaveTheTightestPoliciesOnceAndAreBounded(t *testing.T) {
	const most = 1024
	full, all := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		rules := rapid.SampledFrom([]int{1, 5, 40}).Draw(t, "rules")
		long := strings.Repeat("n", rapid.IntRange(0, 60).Draw(t, "length of a name"))
		var answers []api.CheckAnswer
		least := map[string]int64{} // policy → what is left of it
		for i := range rapid.IntRange(1, 100).Draw(t, "keys") {
			a := api.CheckAnswer{Key: fmt.Sprint("k", i), Rule: fmt.Sprint(long, i%rules)}
			for w, name := range []string{"-1s", "-1m", "-1h"} {
				name = a.Rule + name
				left := rapid.Int64Range(0, 1_000_000_000_000).Draw(t, "left")
				a.Windows = append(a.Windows, api.WindowState{Limit: left + 1, Remaining: left,
					WindowMs: []int64{1000, 60_000, 3_600_000}[w]})
				if n, ok := least[name]; !ok || left < n {
					least[name] = left
				}
			}
			answers = append(answers, a)
		}
		h := http.Header{}
		headers.Set(h, answers, 0)
		var kept, left []int64
		for name, want := range least {
			q, limited := number(t, h, "RateLimit-Policy", name, "q")
			r, found := number(t, h, "RateLimit", name, "r")
			if found != limited || found && (r != want || q != want+1) {
				t.Fatalf("%s: q=%d, r=%d, want %d and %d: %v", name, q, r, want+1, want, h)
			}
			if limited {
				kept = append(kept, want)
			} else {
				left = append(left, want)
			}
		}
		size := max(len(h.Get("RateLimit")), len(h.Get("RateLimit-Policy")))
		switch {
		case size > most:
			t.Fatalf("a header of %d bytes", size)
		case len(left) == 0:
			all++
		case slices.Max(kept) > slices.Min(left):
			t.Fatalf("a policy with %d left is there, one with %d is not", slices.Max(kept), slices.Min(left))
		case size < most-130: // an item at most
			t.Fatalf("policies are left out of a header of %d bytes", size)
		default:
			full++
		}
	})
	if full == 0 || all == 0 {
		t.Errorf("%d answers had to leave out policies, %d had not: the test proves nothing", full, all)
	}
}
