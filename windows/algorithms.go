package windows

import (
	"cmp"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/lua"
)

// AlgorithmOf returns the algorithm that counts a window of the rule; "" for a window that counts only
// reserved units.
func (r *Rule) AlgorithmOf(w Window) string {
	switch {
	case w.InFlight:
		return ""
	case w.inPeriods():
		return periodAlgorithm
	case w.Distinct != "":
		return lua.Distinct
	}
	return cmp.Or(w.Algorithm, r.Algorithm)
}

// CountedAnew returns the windows that start from zero at the change: the rule had them before, and now counts them in
// other buckets, or by another algorithm that has no log of them yet.
func (r *Rule) CountedAnew(before *Rule) (list []Window) {
	for _, w := range r.Windows {
		for _, old := range before.Windows {
			if w.InFlight || !w.Same(old) {
				continue
			}
			is, was := r.AlgorithmOf(w), before.AlgorithmOf(old)
			if is != was && r.Kept(before, w) == 0 || is == SlidingBuckets && r.Buckets != before.Buckets {
				list = append(list, w)
			}
		}
	}
	return list
}

// Kept returns how far back in time the data reach that the rule `before` has stored for a window. It returns 0 if that
// rule has stored no data for the window, or if the window's algorithm keeps separate data for each window.
func (r *Rule) Kept(before *Rule, w Window) (kept time.Duration) {
	algorithm := r.AlgorithmOf(w)
	if !lua.IsExact(algorithm) && algorithm != lua.Distinct {
		return 0
	}
	for _, old := range before.Windows {
		if before.AlgorithmOf(old) == algorithm && old.valueOf() == w.valueOf() {
			kept = max(kept, old.Per)
		}
	}
	return kept
}

// Same reports whether two windows have the same span, whatever their limits are.
func (w Window) Same(o Window) bool {
	return w.InFlight == o.InFlight && w.valueOf() == o.valueOf() && w.sameSpan(o)
}

// algorithmFor returns the algorithm for a window that replaces the rule's windows: that of the rule's window of the
// same length, or otherwise of its longest window, so that units that a key has spent still count.
func (r *Rule) algorithmFor(w Window) string {
	if w.inPeriods() {
		return ""
	}
	best := Window{}
	for _, old := range r.Windows {
		if a := r.AlgorithmOf(old); !slices.Contains(Algorithms, a) {
			continue
		}
		if old.Per == w.Per || best.Per != w.Per && old.Per > best.Per {
			best = old
		}
	}
	return best.Algorithm
}

// Algorithms returns the algorithms that count the rule's windows, each once: some of the variable
// Algorithms, or those of the windows' kinds. For a rule that counts only reserved units, it returns
// the rule's Algorithm.
func (r *Rule) Algorithms() []string {
	var list []string
	for _, w := range r.Windows {
		if a := r.AlgorithmOf(w); a != "" && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	if len(list) == 0 {
		return []string{r.Algorithm}
	}
	return list
}
