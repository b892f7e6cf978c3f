package guard

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/streamcounter/streamcounter/api"
)

const million = 1_000_000

// fullGuard holds a million throttled keys, and gives them in random order, as they come with requests.
func fullGuard(b *testing.B) (g *Guard, keys []string) {
	b.Helper()
	g, _ = deaf(b, Config{})
	g.clock.Store(t0) // as Run does
	for _, i := range rand.Perm(million) {
		keys = append(keys, "user:"+strconv.Itoa(i*7919))
		g.apply(message(b, "api", keys[len(keys)-1], api.StateThrottled, t0, t0+3_600_000, false))
	}
	rand.Shuffle(million, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return g, keys
}

func BenchmarkGuardThrottled(b *testing.B) {
	g, keys := fullGuard(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i = (i + 1) % million {
		if !g.Throttled(keys[i]) {
			b.Fatal(keys[i])
		}
	}
}

// One decision as it comes from NATS, JSON and all, with a million keys held.
func BenchmarkGuardApply(b *testing.B) {
	g, keys := fullGuard(b)
	renewal := message(b, "api", keys[0], api.StateThrottled, t0+1, t0+3_600_000, false)
	b.ReportAllocs()
	for b.Loop() {
		g.apply(renewal)
	}
}
