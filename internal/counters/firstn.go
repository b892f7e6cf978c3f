package counters

import "slices"

// firstN keeps the first n of many values, each once. compare is 0 for two that are the same.
type firstN[T any] struct {
	n       int
	compare func(a, b T) int
	list    []T
	full    bool // the first n of list are sorted: a value that is not before the last of them is left out
}

func (f *firstN[T]) add(v T) {
	if f.n < 1 || f.full && f.compare(v, f.list[f.n-1]) >= 0 {
		return
	}
	f.list = append(f.list, v)
	if len(f.list) >= 2*f.n { // after each cut, fewer of the values that follow are among the first
		f.sorted()
	}
}

// sorted returns the first n values in order.
func (f *firstN[T]) sorted() []T {
	slices.SortFunc(f.list, f.compare)
	f.list = slices.CompactFunc(f.list, func(a, b T) bool { return f.compare(a, b) == 0 })
	if f.full = len(f.list) >= f.n; f.full {
		f.list = f.list[:f.n]
	}
	return f.list
}
