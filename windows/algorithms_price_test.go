package windows_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// BenchmarkAlgorithms is the price of a check by algorithm and outcome, at 100
// units in the window: all in turn in one run, beside an empty script and a GET.
// The figures are medians over the turns, in CPU of Redis's main thread.
func BenchmarkAlgorithms(b *testing.B) {
	ctx := context.Background()
	client := priceRedis(b)
	keys, err := stream.NewKeys("price", 1)
	if err != nil {
		b.Fatal(err)
	}
	counter := windows.NewRedis(client, keys)
	type contestant struct {
		name string
		run  func() error
		µs   []float64
	}
	empty := redis.NewScript("return 1")
	list := []*contestant{
		{name: "empty-script", run: func() error { return empty.Run(ctx, client, nil).Err() }},
		{name: "get", run: func() error { return client.Get(ctx, "price").Err() }},
	}
	client.Set(ctx, "price", "1", 0)
	for _, a := range windows.Algorithms {
		for _, outcome := range []string{"admit", "deny"} {
			limit := int64(100)
			if outcome == "admit" {
				limit = 1_000_000
			}
			rule := rulesOf(b, &windows.Rule{Name: "api", Match: "*", Algorithm: a, Windows: []windows.Window{{Limit: limit, Per: 24 * time.Hour}}}).List()[0]
			ask := []windows.Ask{{Rule: rule, Key: outcome, Cost: 1}}
			counter.Now = func() int64 { return time.Now().UnixMilli() - 1000 }
			for range 100 {
				if _, err := counter.Check(ctx, ask); err != nil {
					b.Fatal(err)
				}
			}
			list = append(list, &contestant{name: form[a] + "-" + outcome, run: func() error {
				v, err := counter.Check(ctx, ask)
				if err == nil && v.Allowed != (outcome == "admit") {
					err = fmt.Errorf("%s %s: allowed %v", a, outcome, v.Allowed)
				}
				return err
			}})
		}
	}
	counter.Now = nil
	if err := counter.Learn(ctx, rulesOf(b, apiRule(nil))); err != nil {
		b.Fatal(err)
	}
	const turn = 200
	b.ResetTimer()
	for range max(1, b.N/turn) {
		for _, c := range list {
			start := cpu(b, client)
			for range turn {
				if err := c.run(); err != nil {
					b.Fatal(err)
				}
			}
			c.µs = append(c.µs, (cpu(b, client)-start)/turn)
		}
	}
	b.StopTimer()
	for _, c := range list {
		slices.Sort(c.µs)
		b.ReportMetric(math.Round(c.µs[len(c.µs)/2]*100)/100, "µs-"+c.name)
	}
}
