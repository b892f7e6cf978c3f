package counters_test

import (
	"context"
	_ "embed" // the script of gcra
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

//go:embed testdata/gcra.lua
var gcraText string

var gcraScript = redis.NewScript(gcraText)

// gcra checks one unit of a limit of units per `per` by the generic cell rate algorithm. It is the
// yardstick of a check: one number per key, and no sliding window.
func gcra(ctx context.Context, c redis.Scripter, key string, limit int64, per time.Duration) error {
	return gcraScript.Run(ctx, c, []string{key}, limit, per.Microseconds(), 1).Err()
}

const farAway = 1_000_000_000 // a limit whose levels no key comes near

// BenchmarkOperations measures what one operation costs Redis: a check by algorithm, in calls with
// several keys and with several calls in a run, of keys that have 100 units in their windows; and an
// event, including its XADD and XREADGROUP. GET and a GCRA script are the yardsticks.
//
// `make bench-compare OLD=REVISION` compares it with another revision, `make instructions` counts
// instructions.
func BenchmarkOperations(b *testing.B) {
	ctx, client := context.Background(), priceRedis(b)
	b.Run("GET", func(b *testing.B) {
		reportPrice(b, client, 1, func(int) error {
			if err := client.Get(ctx, "get").Err(); !errors.Is(err, redis.Nil) {
				return err
			}
			return nil
		})
	})
	b.Run("GCRA", func(b *testing.B) {
		reportPrice(b, client, 1, func(i int) error {
			return gcra(ctx, client, "gcra:"+strconv.Itoa(i%20), farAway, time.Minute)
		})
	})
	day := []windows.Window{{Limit: farAway, Per: 24 * time.Hour}}
	for _, algorithm := range windows.Algorithms {
		for _, x := range []struct {
			name     string
			windows  []windows.Window
			of       int // checks in a call
			together bool
			denied   bool
		}{
			{"check", day, 1, false, false},
			{"two-windows", append(day, windows.Window{Limit: farAway, Per: 48 * time.Hour}), 1, false, false},
			{"20-in-a-run", day, 20, false, false},
			{"20-keys-in-a-call", day, 20, true, false},
			{"denied", []windows.Window{{Limit: 100, Per: 24 * time.Hour}}, 1, false, true},
		} {
			b.Run(algorithm+"/"+x.name, func(b *testing.B) {
				counter, rules, _ := priced(b, client, &windows.Rule{Algorithm: algorithm, Windows: x.windows})
				calls := make([][]counters.Request, 20)
				for i := range calls {
					key := "user:" + strconv.Itoa(i)
					calls[i] = []counters.Request{{Plan: rules.Match(key), Key: key, Cost: 1}}
				}
				for range 100 {
					_, err := counter.CheckMany(ctx, calls)
					testkit.Must(b, err)
				}
				reportPrice(b, client, x.of, func(i int) error {
					from := i * x.of % len(calls)
					run := calls[from : from+x.of]
					if x.together {
						run = [][]counters.Request{slices.Concat(run...)}
					}
					got, err := counter.CheckMany(ctx, run)
					if err == nil && got[0].Allowed == x.denied {
						err = fmt.Errorf("allowed is %t", got[0].Allowed)
					}
					return err
				})
			})
		}
	}
	for _, size := range []int{1, 100} {
		b.Run("event/"+strconv.Itoa(size)+"-in-a-fold", func(b *testing.B) {
			foldPrice(b, client, &windows.Rule{Windows: day}, 1000, size, size)
		})
	}
	for _, values := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("distinct/event-beside-%d-values", values), func(b *testing.B) {
			foldPrice(b, client, &windows.Rule{Windows: valuesOfADay}, 1, values, 1)
		})
	}
	b.Run("distinct/check", func(b *testing.B) {
		counter, rules, _ := priced(b, client, &windows.Rule{Windows: valuesOfADay})
		reportPrice(b, client, 1, func(i int) error {
			_, err := counter.Check(ctx, []counters.Request{{Plan: rules.Match("k"), Key: "user:" + strconv.Itoa(i%20),
				Cost: 1, Values: []string{strconv.Itoa(i)}}})
			return err
		})
	})
}

var valuesOfADay = []windows.Window{{Limit: 20_000, Per: 24 * time.Hour, Distinct: "user"}}

// priced is a counter with one rule, under a separate prefix.
func priced(b *testing.B, c *redis.Client, rule *windows.Rule) (*counters.Redis, *windows.Rules, *stream.Keys) {
	b.Helper()
	keys, err := stream.NewKeys("price-"+strconv.FormatInt(time.Now().UnixNano(), 36), 1)
	testkit.Must(b, err)
	rule.Name, rule.Match, rule.Hold = "api", "*", windows.DefaultHold
	counter, rules := counters.New(c, keys), rulesOf(b, rule)
	testkit.Must(b, counter.RecordRules(context.Background(), rules))
	return counter, rules, keys
}

// foldPrice is the price of folds of so many events, of so many keys, each with a different value, after a first fold.
func foldPrice(b *testing.B, c *redis.Client, rule *windows.Rule, ofKeys, first, size int) {
	ctx := context.Background()
	counter, rules, keys := priced(b, c, rule)
	reader := eventlog.NewReader(c, keys, "bench", keys.All())
	testkit.Must(b, reader.CreateGroups(ctx))
	next := 0
	fold := func(size int) error {
		pipe := c.Pipeline()
		for range size {
			next++
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: keys.Events(0),
				Values: []any{"key", "user:" + strconv.Itoa(next*7919%ofKeys), "count", "1", "user", next}})
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		batches, err := reader.Read(ctx, size, -1)
		if err != nil {
			return err
		}
		folded, _, err := counter.Fold(ctx, rules, counters.Batch{Events: eventsOf(b, batches[0])})
		if err == nil && folded.Folded != int64(size) {
			err = fmt.Errorf("%d events folded of %d", folded.Folded, size)
		}
		return err
	}
	testkit.Must(b, fold(first))
	reportPrice(b, c, size, func(int) error { return fold(size) })
}
