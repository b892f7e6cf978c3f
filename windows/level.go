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

// compile turns a rule into what the scripts are told. everyMs is how often a log
// is trimmed and its expiry renewed.
func compile(r *Rule, everyMs int64) *lua.Rule {
	out := &lua.Rule{
		Algorithm: r.Algorithm, Shadow: r.Shadow, Tune: everyMs,
		SpanMs: r.Longest().Milliseconds(), Spec: levelSpec(r),
	}
	if r.Algorithm == SlidingBuckets {
		out.Tune = r.Buckets
	}
	for _, w := range r.Windows {
		lowest := w.Limit
		switch {
		case r.Unlevelled:
			lowest = outOfReach
		case len(r.Alerts) > 0:
			lowest = threshold(w.Limit, r.Alerts[0])
		}
		out.Windows = append(out.Windows, lua.Window{Ms: w.Per.Milliseconds(), Limit: w.Limit, Lowest: lowest})
	}
	return out
}

// levelSpec writes a rule's levels in the form that levels.lua reads.
func levelSpec(r *Rule) string {
	var b strings.Builder
	shadow := 0
	if r.Shadow {
		shadow = 1
	}
	fmt.Fprintf(&b, "%s;%d;%d", r.Name, r.Hold.Milliseconds(), shadow)
	if r.Unlevelled {
		return b.String() + ";" // no window has any, and the form is kept
	}
	for _, w := range r.Windows {
		fmt.Fprintf(&b, ";%d,%d", w.Per.Milliseconds(), w.Limit)
		for _, pct := range r.Alerts {
			fmt.Fprintf(&b, ",%d=%d", pct, threshold(w.Limit, pct))
		}
		fmt.Fprintf(&b, ",%d=%d", api.LevelThrottled, w.Limit)
	}
	return b.String()
}

// parseThrottle reads the throttle decision out of a record of the levels hash
// (levels.lua has its form); false where the key stands below its limits.
func parseThrottle(key, record string) (api.Throttled, bool) {
	body, decision, ok := strings.Cut(record, "!")
	d := strings.Split(decision, ",")
	if !ok || len(d) != 3 {
		return api.Throttled{}, false
	}
	parts := strings.Split(body, "|")
	t := api.Throttled{Key: key, Rule: parts[0], WindowMs: atoi(d[0]), SinceMs: atoi(d[1]), UntilMs: atoi(d[2])}
	for _, w := range parts[1:] {
		if f := strings.Split(w, ","); len(f) > 1 && f[0] == d[0] {
			t.Limit = atoi(f[1])
		}
	}
	return t, true
}

func atoi(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}
