package windows

import (
	"cmp"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/lua"
)

// algorithmOf gives the algorithm that counts a window of the rule; "" for one that counts what is
// reserved alone. Exact ones say the same of the same events, so all windows that name one share that of the
// longest of them: then what a key has spent can pass to any other (carry.go).
func (r *Rule) algorithmOf(w Window) string {
	a := r.namedFor(w)
	if !lua.IsExact(a) {
		return a
	}
	longest := time.Duration(0)
	for _, other := range r.Windows {
		if name := r.namedFor(other); other.Per > longest && lua.IsExact(name) {
			a, longest = name, other.Per
		}
	}
	return a
}

// namedFor gives the algorithm that the rule names for a window.
func (r *Rule) namedFor(w Window) string {
	switch {
	case w.InFlight:
		return ""
	case w.Calendar.Unit != "":
		return lua.Calendar
	}
	return cmp.Or(w.Algorithm, r.Algorithm)
}

// exact gives the exact algorithm of the rule's windows; "" where none is.
func (r *Rule) exact() string {
	for _, a := range r.Algorithms() {
		if lua.IsExact(a) {
			return a
		}
	}
	return ""
}

// withExact gives the rule with another exact algorithm for the windows that have one.
func (r *Rule) withExact(to string) *Rule {
	if r == nil || to == "" || r.exact() == "" || r.exact() == to {
		return r
	}
	c := *r
	c.Windows = slices.Clone(r.Windows)
	if lua.IsExact(c.Algorithm) {
		c.Algorithm = to
	}
	for i := range c.Windows {
		if lua.IsExact(c.Windows[i].Algorithm) {
			c.Windows[i].Algorithm = to
		}
	}
	return &c
}

// Algorithms gives the algorithms that count the rule's windows, each once: one of Algorithms, or
// "calendar". A rule that counts what is reserved alone has its own.
func (r *Rule) Algorithms() []string {
	var list []string
	for _, w := range r.Windows {
		if a := r.algorithmOf(w); a != "" && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	if len(list) == 0 {
		return []string{r.Algorithm}
	}
	return list
}
