package windows_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// BenchmarkCheckMany is the price of one check where several share a run, over
// 100,000 keys that each have a log already: Redis CPU, all sizes in turn.
func BenchmarkCheckMany(b *testing.B) {
	const keys = 100_000
	ctx := context.Background()
	client := priceRedis(b)
	k, err := stream.NewKeys("price", 16)
	testkit.Must(b, err)
	counter := windows.NewRedis(client, k)
	rules := rulesOf(b, &windows.Rule{Name: "api", Match: "*", Windows: []windows.Window{{Limit: 1_000_000,
		Per: time.Minute}}, Alerts: []int{80, 95}})
	testkit.Must(b, counter.RecordRules(ctx, rules))
	rule := planOf(rules)
	run := func(from, n int) {
		calls := make([][]windows.Request, n)
		for i := range calls {
			key := from + i
			if from < 0 {
				key = rand.IntN(keys)
			}
			calls[i] = []windows.Request{{Plan: rule, Key: fmt.Sprintf("user:%06d", key), Cost: 1}}
		}
		if _, err := counter.CheckMany(ctx, calls); err != nil {
			b.Fatal(err)
		}
	}
	for from := 0; from < keys; from += 500 {
		run(from, 500)
	}
	sizes := []int{1, 4, 16, 32, 100}
	prices := map[int][]float64{}
	b.ResetTimer()
	for range max(1, b.N/1000) {
		for _, size := range sizes {
			start := cpu(b, client)
			for range 1000 / size {
				run(-1, size)
			}
			prices[size] = append(prices[size], (cpu(b, client)-start)/float64(1000/size*size))
		}
	}
	b.StopTimer()
	for _, size := range sizes {
		slices.Sort(prices[size])
		b.ReportMetric(math.Round(prices[size][len(prices[size])/2]*100)/100, fmt.Sprintf("µs-of-%d", size))
	}
}
