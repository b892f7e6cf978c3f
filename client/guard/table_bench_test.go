package guard

import (
	"hash/maphash"
	"strconv"
	"sync"
	"testing"
)

// What else could say until when a million keys are throttled; docs/decisions/0020.
func BenchmarkUntil(b *testing.B) {
	keys := shuffled(func(i int) string { return "user:" + strconv.Itoa(i*7919) })
	probes := shuffled(func(i int) string { return "user:" + strconv.Itoa(i*7919) })
	type guarded[K comparable] struct {
		mu sync.RWMutex
		m  map[K]int64
		_  [32]byte // a cache line each
	}
	seed := maphash.MakeSeed()
	for _, c := range []struct {
		name string
		make func() (until func(key string) int64)
	}{
		{"one map", func() func(string) int64 {
			g := guarded[string]{m: map[string]int64{}}
			for _, k := range keys {
				g.m[k] = 1
			}
			return func(key string) int64 {
				g.mu.RLock()
				defer g.mu.RUnlock()
				return g.m[key]
			}
		}},
		{"256 maps", func() func(string) int64 {
			var gs [256]guarded[string]
			for i := range gs {
				gs[i].m = map[string]int64{}
			}
			for _, k := range keys {
				gs[maphash.String(seed, k)&255].m[k] = 1
			}
			return func(key string) int64 {
				g := &gs[maphash.String(seed, key)&255]
				g.mu.RLock()
				defer g.mu.RUnlock()
				return g.m[key]
			}
		}},
		{"256 maps of hashes", func() func(string) int64 {
			var gs [256]guarded[uint64]
			for i := range gs {
				gs[i].m = map[uint64]int64{}
			}
			for _, k := range keys {
				h := maphash.String(seed, k)
				gs[h&255].m[h] = 1
			}
			return func(key string) int64 {
				h := maphash.String(seed, key)
				g := &gs[h&255]
				g.mu.RLock()
				defer g.mu.RUnlock()
				return g.m[h]
			}
		}},
		{"table", func() func(string) int64 {
			t := newTable()
			for _, k := range keys {
				t.set(k, 1)
			}
			return t.until
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			until := c.make()
			b.ReportAllocs()
			i, began := 0, cpu()
			for b.Loop() {
				if until(probes[i]) == 0 {
					b.Fatal(probes[i])
				}
				if i++; i == million {
					i = 0
				}
			}
			b.ReportMetric(float64(cpu()-began)/float64(b.N), "cpu-ns/op")
		})
	}
}
