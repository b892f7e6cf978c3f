package compare

import (
	"cmp"
	"slices"
)

// Request is one call: at Ms, in ms since 1970, Key requests Cost units.
type Request struct {
	Ms     int64
	Key    string
	Cost   int64
	Values map[string]string // of the fields that rules count; nil: none
}

// Trace is the requests that every algorithm gets.
type Trace struct {
	Name     string    // a title: what it is, or the file that it is from
	Requests []Request // in the order of time
	Sorted   int       // requests that came after a later one, and were put in order
	Rejected int       // lines that could not be read and are not in it
}

// sort puts the requests in order; requests of the same time keep their order.
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

// info describes the trace, which has at least one request.
func (t *Trace) info() TraceInfo {
	asked, n := t.asked(), len(t.Requests)
	out := TraceInfo{Name: t.Name, Requests: n, Keys: len(asked), FirstMs: t.Requests[0].Ms,
		LastMs: t.Requests[n-1].Ms, Sorted: t.Sorted, RejectedLines: t.Rejected}
	for _, units := range asked {
		out.Units += units
	}
	return out
}

// fields returns the names for which any request has a value.
func (t *Trace) fields() map[string]bool {
	names := map[string]bool{}
	for _, r := range t.Requests {
		for name := range r.Values {
			names[name] = true
		}
	}
	return names
}

// asked returns key → requested units.
func (t *Trace) asked() map[string]int64 {
	units := map[string]int64{}
	for _, r := range t.Requests {
		units[r.Key] += r.Cost
	}
	return units
}
