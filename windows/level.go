package windows

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/lua"
)

// threshold is the lowest use of a window that stands at pct percent of its limit.
func threshold(limit int64, pct int) int64 {
	return max(1, (limit*int64(pct)+99)/100)
}

// outOfReach is more than any window can hold: with it as the lowest level the
// scripts never look for one.
const outOfReach = 1<<53 - 1

// compile turns the rules that share a counter into what the scripts receive; the
// one that decides is the first. everyMs is how often a log is trimmed and its
// expiry renewed.
func compile(rules []*Rule, everyMs int64) *lua.Rule {
	out := &lua.Rule{Algorithm: rules[0].Algorithm, Setting: everyMs}
	if out.Algorithm == SlidingBuckets {
		out.Setting = rules[0].Buckets
	}
	specs := make([]string, len(rules))
	for i, r := range rules {
		specs[i] = levelSpec(r)
		for _, w := range r.Windows {
			out.Windows = append(out.Windows, lua.Window{Ms: w.Per.Milliseconds(), Limit: w.Limit, Lowest: r.lowest(w)})
		}
		if !r.Shadow {
			out.Decides = len(out.Windows)
		}
		out.SpanMs = max(out.SpanMs, r.Longest().Milliseconds())
	}
	out.Spec = strings.Join(specs, "\n")
	return out
}

// lowest is the least use of a window that stands at a level.
func (r *Rule) lowest(w Window) int64 {
	switch {
	case r.Unlevelled:
		return outOfReach
	case len(r.Alerts) > 0:
		return threshold(w.Limit, r.Alerts[0])
	}
	return w.Limit
}

// levelSpec writes a rule's levels in the form that levels.lua reads.
func levelSpec(r *Rule) string {
	var b strings.Builder
	shadow := 0
	if r.Shadow {
		shadow = 1
	}
	algorithm := r.Algorithm
	if r.Buckets > 0 {
		algorithm = fmt.Sprintf("%s:%d", algorithm, r.Buckets) // others do not see the same units
	}
	fmt.Fprintf(&b, "%s;%s;%d;%d", r.Name, algorithm, r.Hold.Milliseconds(), shadow)
	if r.Unlevelled {
		return b.String() // no window has any
	}
	for _, w := range r.Windows {
		fmt.Fprintf(&b, "|%d,%d", w.Per.Milliseconds(), w.Limit)
		for _, pct := range r.Alerts {
			fmt.Fprintf(&b, ",%d=%d", pct, threshold(w.Limit, pct))
		}
		fmt.Fprintf(&b, ",%d=%d", api.LevelThrottled, w.Limit)
	}
	return b.String()
}

// parseThrottle reads the throttle decision out of a field of the levels hash
// (levels.lua has the form of both); false where the key stands below its limits.
func parseThrottle(field, record string) (api.Throttled, bool) {
	key, _, _ := strings.Cut(field, "\n")
	body, decision, ok := strings.Cut(record, "!")
	d := strings.Split(decision, ",")
	if !ok || len(d) != 6 {
		return api.Throttled{}, false
	}
	rule, _, _ := strings.Cut(body, ";")
	return api.Throttled{Key: key, Rule: rule, WindowMs: atoi(d[0]), Limit: atoi(d[1]), SinceMs: atoi(d[2]),
		UntilMs: atoi(d[3]), Shadow: d[5] == "1"}, true
}

func atoi(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}
