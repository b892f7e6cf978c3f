package windows

import "slices"

// valueFrom has the rules that take values from entries of Envoy's descriptors.
type valueFrom struct {
	list  []*Rule       // in file order
	place map[*Rule]int // the places of all rules in the file; nil if list is empty
}

func newValueFrom(rules []*Rule) (v valueFrom) {
	for _, r := range rules {
		if r.HasValueFrom() {
			v.list = append(v.list, r)
		}
	}
	if len(v.list) > 0 {
		v.place = make(map[*Rule]int, len(rules))
		for i, r := range rules {
			v.place[r] = i
		}
	}
	return v
}

// HasValueFrom reports whether the rule takes a value from an entry of Envoy's descriptors.
func (r *Rule) HasValueFrom() bool {
	return slices.ContainsFunc(r.Windows, func(w Window) bool { return w.ValueFrom != "" })
}

// WithValueFrom returns the rules that take values from entries, in file order. Do not change the list.
func (r *Rules) WithValueFrom() []*Rule { return r.fromEntry.list }

// Before reports whether rule a comes before rule b in the file. It is only for files in which a rule has value_from.
func (r *Rules) Before(a, b *Rule) bool { return r.fromEntry.place[a] < r.fromEntry.place[b] }
