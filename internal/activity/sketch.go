package activity

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
)

// sketchKeys is how many keys of one rule and minute are counted at once; for a time, up to twice as many are.
const sketchKeys = 512

// sketch counts the units of the busiest keys in bounded memory, after Misra and Gries (Finding repeated elements,
// 1982): when it is full, the median is subtracted from every counter, and counters that fall to zero are removed.
// Each time, at least half of the counters lose what `missed` gains, so missed is at most total/sketchKeys.
//
// Once it was full, a unit of a key without a counter makes a counter only with the chance 1/skip (sample and hold;
// Estan and Varghese, 2002), so that the many rare keys cost almost nothing. The chance that a key had more than
// beyond() units that are not counted is below 1 in 20,000.
type sketch struct {
	counters map[string]*int64
	missed   int64
	skip     int64
	total    int64 // of all keys, exact
	random   func(n int64) int64
}

// The chance to be counted.
const (
	skipShare  = 16 // skip is this part of missed
	skipsBound = 10 // the chance that a key misses more than skipsBound*skip units is e^-10
)

func newSketch() *sketch { return &sketch{counters: map[string]*int64{}, skip: 1, random: rand.Int64N} }

// beyond returns by how much the units of a key may be more than its counter.
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
	first := units                          // with &units, each call would allocate
	s.counters[strings.Clone(key)] = &first // otherwise the key may keep a long request in memory
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

// list returns the n keys with the most units, the most first. beyond is how many more units a listed key may have,
// and unlisted is how many units a key that is not listed may have.
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
