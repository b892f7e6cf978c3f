// Package headers writes the answers of checks as HTTP headers, for the server and for the middleware in
// client/httpmw: RateLimit-Policy and RateLimit by the IETF draft, the older X-RateLimit-*, and Retry-After.
package headers

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/dunglas/httpsfv" // structured fields (RFC 9651) whole, and maintained

	"github.com/streamcounter/streamcounter/api"
)

// Set adds headers with the caller's limits: RateLimit-Policy and RateLimit by the IETF draft (structured fields,
// whole seconds), and the older X-RateLimit-* for the window that has least left; none of these if no answer has a
// window. It sets Retry-After if retryMs is above 0.
func Set(h http.Header, answers []api.CheckAnswer, retryMs int64) {
	var policies, states httpsfv.List
	var all []api.WindowState
	for i := range answers {
		a := &answers[i]
		if slices.ContainsFunc(answers[:i], func(b api.CheckAnswer) bool {
			return b.Key == a.Key &&
				b.Rule == a.Rule
		}) {
			continue // the same key asked for twice
		}
		for j := range a.Windows {
			w := &a.Windows[j]
			name := policyName(a, j)
			policy := item(name, "q", w.Limit)
			if !w.InFlight {
				policy.Params.Add("w", Seconds(w.WindowMs))
			}
			state := item(name, "r", w.Remaining)
			state.Params.Add("t", Seconds(w.NextFreeMs))
			policies, states = append(policies, policy), append(states, state)
			all = append(all, *w)
		}
	}
	if retryMs > 0 {
		h.Set("Retry-After", strconv.FormatInt(Seconds(retryMs), 10))
	}
	tightest := api.Tightest(all)
	if tightest == nil {
		return
	}
	if v, err := httpsfv.Marshal(policies); err == nil { // only numbers beyond 10^15 fail
		h.Set("RateLimit-Policy", v)
	}
	if v, err := httpsfv.Marshal(states); err == nil {
		h.Set("RateLimit", v)
	}
	h.Set("X-RateLimit-Limit", strconv.FormatInt(tightest.Limit, 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(tightest.Remaining, 10))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(Seconds(tightest.NextFreeMs), 10))
}

// policyName returns the rule's name and the window: api-1m. It always has the window, because a guard knows a
// decision's window, but not how many windows the rule has.
func policyName(a *api.CheckAnswer, i int) string {
	switch w := &a.Windows[i]; {
	case w.InFlight:
		return a.Rule + "-in-flight"
	case w.OfValues():
		return a.Rule + "-" + w.Distinct + "-" + compact(w.WindowMs)
	default:
		return a.Rule + "-" + cmp.Or(w.Period(), compact(w.WindowMs))
	}
}

// compact writes a window in its largest whole unit: 1m, 36h, 1500ms.
func compact(ms int64) string {
	for _, u := range []struct {
		ms   int64
		name string
	}{{86_400_000, "d"}, {3_600_000, "h"}, {60_000, "m"}, {1000, "s"}} {
		if ms%u.ms == 0 {
			return strconv.FormatInt(ms/u.ms, 10) + u.name
		}
	}
	return strconv.FormatInt(ms, 10) + "ms"
}

func item(name, param string, value int64) httpsfv.Item {
	it := httpsfv.NewItem(strings.ToValidUTF8(name, ""))
	it.Params.Add(param, value)
	return it
}

// Seconds rounds milliseconds up to seconds, so that a caller never comes back too early.
func Seconds(ms int64) int64 { return (ms + 999) / 1000 }
