package windows

import (
	"cmp"
	"slices"

	"github.com/streamcounter/streamcounter/lua"
)

// AlgorithmOf gives the algorithm that counts a window of the rule; "" for one that counts what is
// reserved alone.
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

// CountedAnew gives the windows of the rule that it had before, too, and counts by another algorithm or in other
// buckets now: what keys have spent in them is forgotten once.
func (r *Rule) CountedAnew(before *Rule) (list []Window) {
	for _, w := range r.Windows {
		for _, old := range before.Windows {
			if w.InFlight || !w.Same(old) {
				continue
			}
			is, was := r.AlgorithmOf(w), before.AlgorithmOf(old)
			if is != was || is == SlidingBuckets && r.Buckets != before.Buckets {
				list = append(list, w)
			}
		}
	}
	return list
}

// Same tells whether two windows are of the same span, whatever their limits are.
func (w Window) Same(o Window) bool {
	return w.InFlight == o.InFlight && w.valueOf() == o.valueOf() && w.sameSpan(o)
}

// algorithmFor gives the algorithm that counts a window which is set in place of the rule's: that of the rule's window
// of the same length, or else of its longest one, so that what a key has spent goes on counting.
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

// Algorithms gives the algorithms that count the rule's windows, each once: one of Algorithms, or
// that of the windows' kind. A rule that counts what is reserved alone has its own.
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
