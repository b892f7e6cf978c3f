package windows

import (
	"fmt"
	"hash/crc32"
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

// appendLevels writes a rule's levels in the form that levels.lua reads.
func (r *Rule) appendLevels(b []byte, windows []lua.Window) []byte {
	shadow := 0
	if r.Shadow {
		shadow = 1
	}
	b = fmt.Appendf(b, "%s;%s;%d;%d", r.Name, r.countedBy(), r.Hold.Milliseconds(), shadow)
	if r.Unlevelled {
		return b // no window has any
	}
	for _, w := range windows {
		b = fmt.Appendf(b, "|%d,%d", w.Ms, w.Limit)
		for _, pct := range r.Alerts {
			b = fmt.Appendf(b, ",%d=%d", pct, threshold(w.Limit, pct))
		}
		b = fmt.Appendf(b, ",%d=%d", api.LevelThrottled, w.Limit)
	}
	return b
}

// countedBy names what counts the rule's windows: levels that another algorithm has raised are looked
// at again, as it does not see the same units.
func (r *Rule) countedBy() string {
	if list := r.Algorithms(); len(list) == 1 && !r.punishes() {
		if list[0] == SlidingBuckets {
			return fmt.Sprintf("%s:%d", list[0], r.Buckets)
		}
		return list[0]
	}
	h := crc32.NewIEEE()
	for _, w := range r.Windows {
		fmt.Fprintf(h, "%s,", r.algorithmOf(w))
	}
	if r.punishes() {
		fmt.Fprint(h, r.Penalty)
	}
	return fmt.Sprintf("%s:%x:%d", lua.Mixed, h.Sum32(), r.Buckets)
}

// parseThrottle reads the throttle decision out of a field of the levels hash
// (lua/records.lua has the form of both); false where the key stands below its limits.
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
