package guard

import (
	"hash/maphash"
	"math/bits"
	"sync/atomic"
)

// table has the time until which each key is throttled, by the key's 64-bit hash. Any number of goroutines may read
// while one writes; none of them waits.
//
// It uses open addressing with 16-byte slots, at most half of them taken, so that a lookup costs one cache line
// whatever is around it. At a million keys this decides the speed (docs/decisions/0020-memory-layout-of-the-guard).
// Two keys have the same hash with a chance of 2^-64, by a seed that is not known outside; Guard.Lookup compares the
// keys.
type table struct {
	seed  maphash.Seed
	slots atomic.Pointer[[]slot]

	// Only the writer uses these.
	taken int // slots with a hash, dead ones included
	live  int // slots of throttled keys
}

// slot: if the hash is 0, the slot is empty and ends a search. If untilMs is 0, the slot is dead: the key is not
// throttled any more, and the next rebuild removes the slot.
type slot struct {
	hash    atomic.Uint64
	untilMs atomic.Int64
}

const fewestSlots = 1024

func newTable() *table {
	t := &table{seed: maphash.MakeSeed()}
	slots := make([]slot, fewestSlots)
	t.slots.Store(&slots)
	return t
}

// until returns the time until which the key is throttled, in ms since 1970. It is 0 if the key is not throttled.
func (t *table) until(key string) int64 {
	h := t.hash(key)
	slots := *t.slots.Load()
	for i := h & uint64(len(slots)-1); ; i = (i + 1) & uint64(len(slots)-1) {
		switch slots[i].hash.Load() {
		case h:
			return slots[i].untilMs.Load()
		case 0:
			return 0
		}
	}
}

func (t *table) hash(key string) uint64 { return max(maphash.String(t.seed, key), 1) }

// set sets the time until which the key is throttled; 0: it is not throttled. Only the writer calls it.
func (t *table) set(key string, untilMs int64) {
	h := t.hash(key)
	slots := *t.slots.Load()
	for i := h & uint64(len(slots)-1); ; i = (i + 1) & uint64(len(slots)-1) {
		s := &slots[i]
		switch s.hash.Load() {
		case h:
			t.count(s.untilMs.Load(), untilMs)
			s.untilMs.Store(untilMs)
			return
		case 0:
			if untilMs == 0 {
				return
			}
			s.untilMs.Store(untilMs) // before the hash: a reader who finds the hash needs it
			s.hash.Store(h)
			t.taken++
			t.count(0, untilMs)
			if 2*t.taken > len(slots) {
				t.rebuild()
			}
			return
		}
	}
}

func (t *table) count(before, after int64) {
	if before == 0 && after != 0 {
		t.live++
	}
	if before != 0 && after == 0 {
		t.live--
	}
}

// rebuild removes dead slots and makes room for at least half as many keys again. A goroutine that searches the old
// slots finds what was true a moment ago.
func (t *table) rebuild() {
	size := max(fewestSlots, 1<<bits.Len(uint(3*t.live))) // a sixth to a third taken
	old, fresh := *t.slots.Load(), make([]slot, size)
	t.taken = t.live
	for i := range old {
		untilMs := old[i].untilMs.Load()
		if untilMs == 0 {
			continue
		}
		h := old[i].hash.Load()
		j := h & uint64(size-1)
		for fresh[j].hash.Load() != 0 {
			j = (j + 1) & uint64(size-1)
		}
		fresh[j].hash.Store(h)
		fresh[j].untilMs.Store(untilMs)
	}
	t.slots.Store(&fresh)
}

// shrink is called now and then: a table that has been full of dead slots, or
// far larger than what it holds, gives its memory back.
func (t *table) shrink() {
	if size := len(*t.slots.Load()); size > fewestSlots && 16*t.live < size {
		t.rebuild()
	}
}
