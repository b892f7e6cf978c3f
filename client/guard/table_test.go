package guard

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// The table against a map, over any order of sets, through growth and rebuilds.
func TestTableIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, want := newTable(), map[string]int64{}
		keys := rapid.IntRange(1, 4000).Draw(t, "keys")
		for range rapid.IntRange(1, 40).Draw(t, "rounds") {
			from, n := rapid.IntRange(0, keys).Draw(t, "from"), rapid.IntRange(1, 500).Draw(t, "n")
			until := int64(rapid.IntRange(0, 3).Draw(t, "until")) // 0: let go
			for i := from; i < from+n; i++ {
				key := strconv.Itoa(i)
				table.set(key, until)
				if want[key] = until; until == 0 {
					delete(want, key)
				}
			}
			if rapid.IntRange(0, 4).Draw(t, "shrink") == 0 {
				table.shrink()
			}
			if table.live != len(want) {
				t.Fatalf("%d live, want %d", table.live, len(want))
			}
		}
		for i := range keys + 500 {
			if key := strconv.Itoa(i); table.until(key) != want[key] {
				t.Fatalf("key %s: until %d, want %d", key, table.until(key), want[key])
			}
		}
		if size := len(*table.slots.Load()); 2*table.taken > size {
			t.Fatalf("%d of %d slots are taken: a search could have no end", table.taken, size)
		}
	})
}

func TestTableGivesMemoryBack(t *testing.T) {
	table := newTable()
	for i := range 100_000 {
		table.set(strconv.Itoa(i), 1)
	}
	for i := range 100_000 {
		table.set(strconv.Itoa(i), 0)
	}
	table.shrink()
	if n := len(*table.slots.Load()); n != fewestSlots {
		t.Errorf("%d slots for nothing, want %d", n, fewestSlots)
	}
}

// A key that stays is found at every moment, whatever the writer does around it.
func TestReadersMissNothingWhileTheTableGrows(t *testing.T) {
	table := newTable()
	table.set("stays", 7)
	var done atomic.Bool
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for !done.Load() {
				if until := table.until("stays"); until != 7 {
					t.Errorf("until %d, want 7", until)
					return
				}
			}
		})
	}
	for i := range 50_000 {
		table.set(strconv.Itoa(i), 1)
	}
	for i := range 50_000 {
		table.set(strconv.Itoa(i), 0)
		if i%1000 == 0 {
			table.shrink()
		}
	}
	done.Store(true)
	readers.Wait()
}

// BenchmarkThrottled looks up a million throttled keys in random order. In memory, the keys themselves are in the
// order in which they are looked up, because a service has the key in its cache.
func BenchmarkThrottled(b *testing.B) {
	g := &Guard{table: newTable()}
	g.clock.Store(1)
	keys := make([]string, 0, 1_000_000)
	for _, n := range rand.Perm(cap(keys)) {
		keys = append(keys, "user:"+strconv.Itoa(n))
		g.table.set(keys[len(keys)-1], 2)
	}
	for i := 0; b.Loop(); i++ {
		if !g.Throttled(keys[i%len(keys)]) {
			b.Fatal("not throttled")
		}
	}
}
