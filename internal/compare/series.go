package compare

import (
	"cmp"
	"slices"
)

// steps are the widths that bars of a plot may have, in ms.
var steps = []int64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000,
	60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000, 3_600_000, 7_200_000, 21_600_000, 43_200_000, 86_400_000}

// stepFor gives a width of which at most n cover the span: a second where that
// does, so that most plots can be read as "per second".
func stepFor(span, n int64) int64 {
	for _, s := range steps {
		if s >= 1000 && span/s < n || span < 20_000 && span/s < n/4 {
			return s
		}
	}
	return max(1, span/n)
}

// admittedPer adds up the units that were admitted to one key in each step. One
// more, empty, ends the line.
func admittedPer(requests []Request, verdicts []bool, key string, from, to, step int64) []int64 {
	out := make([]int64, (to-from)/step+2)
	for i, r := range requests {
		if verdicts[i] && r.Key == key {
			out[(r.Ms-from)/step] += r.Cost
		}
	}
	return out
}

// trailing gives, for each step from `from`, before the first request, to `to`,
// when all have left the window, the most that the key's window held in it.
func trailing(requests []Request, verdicts []bool, key string, window, from, to, step int64) []int64 {
	type change struct{ ms, units int64 }
	var changes []change
	for i, r := range requests {
		if verdicts[i] && r.Key == key {
			changes = append(changes, change{r.Ms, r.Cost}, change{r.Ms + window, -r.Cost})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.ms, b.ms) })
	out := make([]int64, (to-from)/step+1)
	var held, at int64 // units, and the step up to which out has them
	fill := func(until int64) {
		for ; at <= until; at++ {
			out[at] = max(out[at], held)
		}
	}
	for i, c := range changes {
		if i == 0 || changes[i-1].ms != c.ms { // all changes of one moment are one
			fill((c.ms - 1 - from) / step)
			at = (c.ms - from) / step
		}
		held += c.units
	}
	fill((to - from) / step)
	return out
}
