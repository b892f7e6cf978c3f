package activity

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// The units of a key are between the returned number and the returned maximum, whatever comes in whatever order. No
// more keys are kept than the bound.
func TestSketchKeepsItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, exact := newSketch(), map[string]int64{}
		keys := rapid.IntRange(1, 8*sketchKeys).Draw(t, "keys")
		step := rapid.IntRange(1, 97).Draw(t, "step")
		units := rapid.SliceOfN(rapid.Int64Range(1, 1000), 1, 20).Draw(t, "units")
		for i := range 6 * sketchKeys {
			key := strconv.Itoa(i * i / step % keys)
			n := units[i%len(units)]
			s.add(key, n)
			exact[key] += n
			if len(s.counters) > 2*sketchKeys {
				t.Fatalf("%d keys are kept", len(s.counters))
			}
		}
		list := rapid.IntRange(1, 60).Draw(t, "list")
		top, beyond, unlisted := s.list(list)
		if s.missed > s.total/sketchKeys {
			t.Fatalf("%d units are missed of %d", s.missed, s.total)
		}
		luck := int64(0) // three times what is said: no run of any test goes beyond that
		if s.skip > 1 {
			luck = 2 * skipsBound * s.skip
		}
		listed := map[string]bool{}
		for _, one := range top {
			listed[one.Key] = true
			if n := exact[one.Key]; n < one.Units || n > one.Units+beyond+luck {
				t.Fatalf("%s had %d, said are %d to %d", one.Key, n, one.Units, one.Units+beyond)
			}
		}
		for key, n := range exact {
			if !listed[key] && n > unlisted+luck {
				t.Fatalf("%s had %d and is not listed, said is at most %d", key, n, unlisted)
			}
		}
	})
}

// With very many keys, the rare ones are counted by chance. The bounds of each key hold anyway, here for a fixed
// random sequence. Without the room for chance they would not hold.
func TestSketchOfManyKeys(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	s, exact := newSketch(), map[string]int64{}
	s.random = random.Int64N
	zipf := rand.NewZipf(random, 1.05, 20, 200_000)
	for range 1_000_000 {
		key := strconv.FormatUint(zipf.Uint64(), 10)
		s.add(key, 1)
		exact[key]++
	}
	top, beyond, unlisted := s.list(50)
	if s.skip < 2 || s.total != 1_000_000 || beyond > s.total/100 {
		t.Fatalf("skip %d, total %d, beyond %d", s.skip, s.total, beyond)
	}
	needed := false
	listed := map[string]bool{}
	for i, one := range top {
		n := exact[one.Key]
		if listed[one.Key] = true; n < one.Units || n > one.Units+beyond {
			t.Errorf("%s had %d, said are %d to %d", one.Key, n, one.Units, one.Units+beyond)
		}
		if i < 10 && n < exact["30"] {
			t.Errorf("%s is among the first ten", one.Key)
		}
	}
	for key, n := range exact {
		if c := s.counters[key]; c != nil && n > *c+s.missed {
			needed = true
		}
		if !listed[key] && n > unlisted {
			t.Errorf("%s had %d and is not listed, said is at most %d", key, n, unlisted)
		}
		if c := s.counters[key]; c != nil && n > *c+beyond {
			t.Errorf("%s had %d, counted are %d and at most %d more", key, n, *c, beyond)
		}
	}
	if !needed {
		t.Error("no key missed more than shrinking took: the test shows nothing")
	}
}
