package check

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/dunglas/httpsfv"

	"github.com/streamcounter/streamcounter/api"
)

// setHeaders tells the caller its limits: RateLimit-Policy and RateLimit by the
// IETF draft (structured fields, whole seconds), and the older X-RateLimit-*
// for the window that has least left.
func setHeaders(h http.Header, answers []api.CheckAnswer, retryMs int64) {
	var policies, states httpsfv.List
	var tightest *api.WindowState
	for i := range answers {
		a := &answers[i]
		for j := range a.Windows {
			w := &a.Windows[j]
			name := policyName(a, j)
			policies = append(policies, item(name, "q", w.Limit, "w", seconds(w.WindowMs)))
			states = append(states, item(name, "r", w.Remaining, "t", seconds(w.MoreMs)))
			if tightest == nil || w.Remaining < tightest.Remaining || (w.Remaining == tightest.Remaining && w.MoreMs > tightest.MoreMs) {
				tightest = w
			}
		}
	}
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
	h.Set("X-RateLimit-Reset", strconv.FormatInt(seconds(tightest.MoreMs), 10))
	if retryMs > 0 {
		h.Set("Retry-After", strconv.FormatInt(seconds(retryMs), 10))
	}
}

// policyName is the rule's name, and with several windows the window too: api-1m.
func policyName(a *api.CheckAnswer, i int) string {
	if len(a.Windows) == 1 {
		return a.Rule
	}
	return a.Rule + "-" + compact(a.Windows[i].WindowMs)
}

// compact words a window by its largest whole unit: 1m, 36h, 1500ms.
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

func item(name, k1 string, v1 int64, k2 string, v2 int64) httpsfv.Item {
	it := httpsfv.NewItem(strings.ToValidUTF8(name, ""))
	it.Params.Add(k1, v1)
	it.Params.Add(k2, v2)
	return it
}

// seconds rounds up: an answer is never told to come back too early.
func seconds(ms int64) int64 { return (ms + 999) / 1000 }
