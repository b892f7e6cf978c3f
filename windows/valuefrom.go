package windows

import "slices"

// HasValueFrom reports whether the rule takes a value from an entry of Envoy's descriptors.
func (r *Rule) HasValueFrom() bool {
	return slices.ContainsFunc(r.Windows, func(w Window) bool { return w.ValueFrom != "" })
}

// WithValueFrom returns the rules that take values from entries, in file order. Do not change the list.
func (r *Rules) WithValueFrom() []*Rule { return r.fromEntry }

// Before reports whether rule a comes before rule b in the file.
func (r *Rules) Before(a, b *Rule) bool { return r.info[a].place < r.info[b].place }
