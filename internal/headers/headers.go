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

// maxBytes bounds RateLimit-Policy and RateLimit: proxies have buffers for all headers of an answer (nginx 4 KB), and
// refuse an answer that does not fit.
const maxBytes = 1024

// Set adds headers with the caller's limits: RateLimit-Policy and RateLimit by the IETF draft (structured fields,
// whole seconds), and the older X-RateLimit-* for the window that has least left; none of these if no answer has a
// window. If not all policies fit, those with the least left are kept. It sets Retry-After if retryMs is above 0.
func Set(h http.Header, answers []api.CheckAnswer, retryMs int64) {
	if retryMs > 0 {
		h.Set("Retry-After", strconv.FormatInt(Seconds(retryMs), 10))
	}
	list := policiesOf(answers)
	if len(list) == 0 {
		return
	}
	slices.SortFunc(list, func(a, b policy) int {
		return cmp.Or(api.CompareTightness(a.window, b.window), cmp.Compare(a.place, b.place))
	})
	tightest := list[0].window
	var policies, states []string
	for _, p := range fitting(list) {
		policies, states = append(policies, p.limit), append(states, p.state)
	}
	if len(policies) > 0 {
		h.Set("RateLimit-Policy", strings.Join(policies, separator))
		h.Set("RateLimit", strings.Join(states, separator))
	}
	h.Set("X-RateLimit-Limit", strconv.FormatInt(tightest.Limit, 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(tightest.Remaining, 10))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(Seconds(tightest.NextFreeMs), 10))
}

// policy is a window of a rule. A name ties its state to it, so several keys have one policy.
type policy struct {
	name         string
	window       *api.WindowState // of the key that has least left
	place        int              // among all policies
	limit, state string           // its items in RateLimit-Policy and RateLimit
}

// policiesOf returns the policies of all answers.
func policiesOf(answers []api.CheckAnswer) (list []policy) {
	places := map[string]int{} // name → place
	for i := range answers {
		a := &answers[i]
		for j := range a.Windows {
			p := policy{name: policyName(a, j), window: &a.Windows[j], place: len(list)}
			if place, ok := places[p.name]; !ok {
				places[p.name] = p.place
				list = append(list, p)
			} else if api.CompareTightness(p.window, list[place].window) < 0 {
				list[place].window = p.window
			}
		}
	}
	return list
}

const separator = ", "

// fitting returns the first policies of a list that fit into the headers, with their items, in order of their places.
func fitting(list []policy) (kept []policy) {
	limits, states := 0, 0 // bytes
	for _, p := range list {
		w := p.window
		limit := item(p.name, "q", w.Limit)
		if !w.InFlight {
			limit.Params.Add("w", Seconds(w.WindowMs))
		}
		state := item(p.name, "r", w.Remaining)
		state.Params.Add("t", Seconds(w.NextFreeMs))
		p.limit, p.state = text(limit), text(state)
		if p.limit == "" || p.state == "" {
			continue
		}
		limits += len(separator) + len(p.limit)
		states += len(separator) + len(p.state)
		if max(limits, states) > len(separator)+maxBytes {
			break
		}
		kept = append(kept, p)
	}
	slices.SortFunc(kept, func(a, b policy) int { return cmp.Compare(a.place, b.place) })
	return kept
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

// text returns an item as a header has it. It is empty for a name that is not ASCII, and for numbers beyond 10^15.
func text(it httpsfv.Item) string {
	s, err := httpsfv.Marshal(it)
	if err != nil {
		return ""
	}
	return s
}

// Seconds rounds milliseconds up to seconds, so that a caller never comes back too early.
func Seconds(ms int64) int64 { return (ms + 999) / 1000 }
