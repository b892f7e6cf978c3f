package counters_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/measure"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// BenchmarkMemory measures the memory of a key by algorithm and by entries in its
// window: used_memory divided by the number of keys. With more entries per key,
// there are fewer keys.
func BenchmarkMemory(b *testing.B) {
	client := priceRedis(b)
	for _, a := range append(slices.Clone(windows.Algorithms), lua.Distinct) {
		for _, size := range []struct{ entries, keys int64 }{{1, 20_000}, {10, 20_000}, {100, 4_000}, {1_000, 200},
			{10_000, 20}} {
			b.Run(fmt.Sprintf("%s/entries=%d", a, size.entries), func(b *testing.B) {
				for b.Loop() {
					bytes := memoryPerKey(b, client, a, size.entries, size.keys)
					b.ReportMetric(math.Round(bytes), "B/key")
					b.ReportMetric(math.Round(bytes/float64(size.entries)*10)/10, "B/entry")
				}
			})
		}
	}
}

// memoryPerKey fills an empty Redis with n keys of so many entries each, spread
// over a day, and returns the memory of one key.
func memoryPerKey(b *testing.B, client *redis.Client, a string, entries, n int64) float64 {
	b.Helper()
	ctx := context.Background()
	client.FlushDB(ctx)
	rule := &windows.Rule{Name: "api", Match: "*", Algorithm: a,
		Windows: []windows.Window{{Limit: windows.MaxLimit, Per: 24 * time.Hour}}}
	if a == lua.Distinct { // of 100, whatever comes
		rule.Algorithm, rule.Windows[0].Distinct, rule.Windows[0].Limit = "", "user", 100
	}
	s := newStore(b, client, client, client, rulesOf(b, rule))
	settled(tale{b, s})
	// The scripts themselves take memory, and so do the buffers of connections.
	s.fold(b, nil, counters.Event{Key: "warm", Ms: s.clock.ms, Count: 1, Fields: map[string]any{"user": "u"}})
	forget := func() {
		for p := range s.keys.Partitions {
			client.Del(ctx, s.keys.Events(p))
		}
	}
	forget()
	before := usedMemory(b, client)
	events := make([]counters.Event, n)
	for i := range entries {
		s.clock.ms = start + i*(86_000_000/entries)
		for k := range events {
			events[k] = counters.Event{Key: fmt.Sprintf("user:%06d", k), Ms: s.clock.ms, Count: 1,
				Fields: map[string]any{"user": fmt.Sprintf("name%06d", i)}}
		}
		s.fold(b, nil, events...)
		if i%100 == 99 || i == entries-1 {
			forget()
		}
	}
	return float64(usedMemory(b, client)-before) / float64(n)
}

func usedMemory(b *testing.B, c *redis.Client) int64 {
	b.Helper()
	n, err := measure.Memory(context.Background(), c)
	testkit.Must(b, err)
	return n
}
