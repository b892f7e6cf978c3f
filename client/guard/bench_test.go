package guard

import (
	"encoding/json"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/streamcounter/streamcounter/api"
)

const million = 1_000_000

// fullGuard holds a million throttled keys, and gives them in random order, as they come
// with requests: one after the other in memory, so that what a probe costs
// is the guard's. perKey is what it takes, in bytes.
func fullGuard(b *testing.B) (g *Guard, probes []string, perKey float64) {
	b.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	g, _ = deaf(b, Config{})
	g.clock.Store(t0) // as Run does
	for i := range million {
		g.apply(message(b, "api", "user:"+strconv.Itoa(i*7919), api.StateThrottled, t0, t0+3_600_000, false))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	return g, shuffled(func(i int) string { return "user:" + strconv.Itoa(i*7919) }),
		float64(after.HeapAlloc-before.HeapAlloc) / million
}

func shuffled(key func(i int) string) []string {
	var slab []byte
	at := make([]int, 0, million+1)
	for _, i := range rand.Perm(million) {
		at = append(at, len(slab))
		slab = append(slab, key(i)...)
	}
	text := string(slab)
	at = append(at, len(slab))
	list := make([]string, million)
	for i := range list {
		list[i] = text[at[i]:at[i+1]]
	}
	return list
}

func BenchmarkGuardThrottled(b *testing.B) {
	g, hits, _ := fullGuard(b)
	misses := shuffled(func(i int) string { return "other:" + strconv.Itoa(i) })
	for _, c := range []struct {
		name   string
		probes []string
		want   bool
	}{{"throttled", hits, true}, {"free", misses, false}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			i, began := 0, cpu()
			for b.Loop() {
				if g.Throttled(c.probes[i]) != c.want {
					b.Fatal(c.probes[i])
				}
				if i++; i == million {
					i = 0
				}
			}
			b.ReportMetric(float64(cpu()-began)/float64(b.N), "cpu-ns/op")
		})
		b.Run(c.name+"/while decisions come", func(b *testing.B) {
			renewals := make([][]byte, 10_000)
			for i := range renewals {
				renewals[i] = message(b, "api", "user:"+strconv.Itoa(i*7919), api.StateThrottled, t0, t0+3_600_000,
					false)
			}
			var done atomic.Bool
			ended := make(chan int)
			go func() {
				n := 0
				for ; !done.Load(); n++ {
					g.apply(renewals[n%len(renewals)])
				}
				ended <- n
			}()
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				i := rand.IntN(million)
				for pb.Next() {
					if g.Throttled(c.probes[i]) != c.want {
						b.Error(c.probes[i])
						return
					}
					if i++; i == million {
						i = 0
					}
				}
			})
			b.StopTimer()
			done.Store(true)
			b.ReportMetric(float64(<-ended)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

func BenchmarkGuardLookup(b *testing.B) {
	g, probes, perKey := fullGuard(b)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if _, ok := g.Lookup(probes[i]); !ok {
			b.Fatal(probes[i])
		}
		if i++; i == million {
			i = 0
		}
	}
	b.ReportMetric(perKey, "B/key")
}

// One decision as it comes from NATS, JSON and all, with a million keys held.
func BenchmarkGuardApply(b *testing.B) {
	g, probes, _ := fullGuard(b)
	for _, c := range []string{"renewal", "throttle and release"} {
		b.Run(c, func(b *testing.B) {
			list := make([][]byte, 100_000)
			for i := range list {
				key, state := probes[i], api.StateThrottled
				if c != "renewal" {
					key = "new:" + strconv.Itoa(i/2)
					if i%2 == 1 {
						state = api.StateReleased
					}
				}
				list[i], _ = json.Marshal(api.Transition{
					ID: "sc/throttle/api/100/60000/throttled/1700000000000/" + key, Rule: "api", Key: key,
					State: state, Level: 100, Limit: 100, WindowMs: 60_000,
					Used: 120, Version: t0 + 1, AtMs: t0 + 1, SinceMs: t0, UntilMs: t0 + 60_000,
					ExpiresMs: t0 + 66_000, Renewal: c == "renewal",
				})
			}
			b.ReportAllocs()
			i, began := 0, cpu()
			for b.Loop() {
				g.apply(list[i%len(list)])
				i++
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
			b.ReportMetric(float64(cpu()-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// All shards once: what Run does every 5 s.
func BenchmarkGuardSweep(b *testing.B) {
	g, _, _ := fullGuard(b)
	for b.Loop() {
		sweepAll(g)
	}
}
