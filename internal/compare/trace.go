package compare

import (
	"cmp"
	"slices"
)

// Request is one call: at Ms, in ms since 1970, Key asks for Cost units.
type Request struct {
	Ms   int64
	Key  string
	Cost int64
}

// Trace is what every algorithm is asked.
type Trace struct {
	Name     string    // a title: what it is, or which file it is from
	Requests []Request // in the order of time
	Seed     *uint64   // nil where nothing is left to chance
	Sorted   int       // requests that stood after a later one, and were put in order
	Rejected int       // lines that could not be read and are not in it
}

// sort puts the requests in order; those of one time stay as they stood.
func (t *Trace) sort() {
	newest := int64(0)
	for _, r := range t.Requests {
		if r.Ms < newest {
			t.Sorted++
		}
		newest = max(newest, r.Ms)
	}
	slices.SortStableFunc(t.Requests, func(a, b Request) int { return cmp.Compare(a.Ms, b.Ms) })
}

// asked gives key → units asked for, and the key that asked for most, the first
// of equals.
func (t *Trace) asked() (units map[string]int64, most string) {
	units = map[string]int64{}
	for _, r := range t.Requests {
		units[r.Key] += r.Cost
	}
	for _, r := range t.Requests {
		if units[r.Key] > units[most] {
			most = r.Key
		}
	}
	return units, most
}
