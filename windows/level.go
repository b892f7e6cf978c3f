package windows

import (
	"fmt"
	"hash/crc32"

	"github.com/streamcounter/streamcounter/api"
)

// threshold returns the lowest use of a window that is at pct percent of its limit.
func threshold(limit int64, pct int) int64 {
	return max(1, (limit*int64(pct)+99)/100)
}

// steps returns the levels of a window for the library: for each the percentage, and the use at which it begins.
func (r *Rule) steps(w Window) (steps []int64) {
	if r.Unlevelled {
		return nil
	}
	for _, pct := range r.Alerts {
		steps = append(steps, int64(pct), threshold(w.Limit, pct))
	}
	return append(steps, int64(api.LevelThrottled), w.Limit)
}

// countedBy identifies how the rule's windows are counted: by the name of the algorithm, or by a checksum if there are
// several. After a change, levels are evaluated again, because another algorithm does not count the same units.
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
