package activity

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
)

// sketchKeys is how many keys of one rule and minute are counted at once, at most twice as many.
const sketchKeys = 512

// sketch counts the units of the busiest keys in bounded memory, after Misra and Gries (Finding
// repeated elements, 1982): when it is full, the median is taken off every counter, and those that
// fall to zero go. As each time at least half of the counters lose what `missed` gains, missed is at
// most total/sketchKeys.
//
// Once it was full, a unit of a key that has no counter gets one with the chance 1/skip alone
// (sample and hold; Estan and Varghese, 2002), so that the many rare keys cost next to nothing.
// A key has had more than beyond() units that are not counted with a chance below 1 in 20,000.
type sketch struct {
	counters map[string]*int64
	missed   int64
	skip     int64
	total    int64 // of all keys, exact
	random   func(n int64) int64
}

// Of the chance to be counted.
const (
	skipShare  = 16 // skip is this part of missed
	skipsBound = 10 // a key misses more than so many times skip with a chance of e^-10
)

func newSketch() *sketch { return &sketch{counters: map[string]*int64{}, skip: 1, random: rand.Int64N} }

// beyond is by how much the units of a key may be more than its counter.
func (s *sketch) beyond() int64 {
	if s.skip == 1 {
		return s.missed
	}
	return s.missed + skipsBound*s.skip
}

func (s *sketch) add(key string, units int64) {
	s.total += units
	if n := s.counters[key]; n != nil {
		*n += units
		return
	}
	if s.skip > 1 && units < s.skip && s.random(s.skip) >= units {
		return
	}
	if len(s.counters) == 2*sketchKeys {
		s.shrink()
	}
	first := units                          // units itself would be put on the heap at each call
	s.counters[strings.Clone(key)] = &first // a clone: the caller's may be a part of something large
}

func (s *sketch) shrink() {
	all := make([]int64, 0, len(s.counters))
	for _, n := range s.counters {
		all = append(all, *n)
	}
	slices.Sort(all)
	median := all[len(all)/2]
	s.missed += median
	s.skip = max(1, s.missed/skipShare)
	for key, n := range s.counters {
		if *n -= median; *n <= 0 {
			delete(s.counters, key)
		}
	}
}

// count is one key of a list.
type count struct {
	Key   string `json:"k"`
	Units int64  `json:"n"`
}

// list gives the n keys with the most units, the most first, and how many units any key may have
// beyond what stands there, or without standing there.
func (s *sketch) list(n int) (top []count, beyond, unlisted int64) {
	all := make([]count, 0, len(s.counters))
	for key, units := range s.counters {
		all = append(all, count{key, *units})
	}
	slices.SortFunc(all, func(a, b count) int {
		return cmp.Or(cmp.Compare(b.Units, a.Units), strings.Compare(a.Key, b.Key))
	})
	if len(all) <= n {
		return all, s.beyond(), s.beyond()
	}
	return all[:n], s.beyond(), s.beyond() + all[n].Units
}
