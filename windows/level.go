package windows

import (
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// threshold is the lowest use of a window that stands at pct percent of its limit.
func threshold(limit int64, pct int) int64 {
	return max(1, (limit*int64(pct)+99)/100)
}

// steps gives the levels of a window, as the library takes them: of each the percentage, and the use at which it
// begins.
func (r *Rule) steps(w Window) (steps []int64) {
	if r.Unlevelled {
		return nil
	}
	for _, pct := range r.Alerts {
		steps = append(steps, int64(pct), threshold(w.Limit, pct))
	}
	return append(steps, int64(api.LevelThrottled), w.Limit)
}

// countedBy names what counts the rule's windows: levels that another algorithm has raised are looked
// at again, as it does not see the same units.
func (r *Rule) countedBy() string {
	beside := r.meterOptions()
	if list := r.Algorithms(); len(list) == 1 && len(beside) == 0 {
		if list[0] == SlidingBuckets {
			return fmt.Sprintf("%s:%d", list[0], r.Buckets)
		}
		return list[0]
	}
	h := crc32.NewIEEE()
	for _, w := range r.Windows {
		fmt.Fprintf(h, "%s,", r.AlgorithmOf(w))
	}
	for _, o := range beside {
		fmt.Fprint(h, o.state(r))
	}
	return fmt.Sprintf("mixed:%x:%d", h.Sum32(), r.Buckets)
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
