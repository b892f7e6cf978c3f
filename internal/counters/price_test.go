package counters_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/measure"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// Prices are CPU time of Redis's main thread (INFO cpu), which is steadier than wall time, reported
// with a yardstick of the same run. If STREAMCOUNTER_TEST_CALLGRIND has the address, the process and
// the output file of a redis-server under callgrind, as with `go -C tools run ./instructions`, prices are
// instructions, which are the same on any machine.

func priceRedis(b *testing.B) *redis.Client {
	b.Helper()
	if addr, _, found := strings.Cut(os.Getenv(callgrind), ","); found {
		return streamtest.Connect(b, "redis://"+addr, func(o *redis.Options) {
			o.ReadTimeout, o.PoolSize = time.Minute, 1
		})
	}
	own := streamtest.OwnRedis(b, "--stream-node-max-bytes", "512", "--save", "", "--appendonly", "no")
	return streamtest.Connect(b, own.URL(), func(o *redis.Options) { o.ReadTimeout = time.Minute })
}

const callgrind = "STREAMCOUNTER_TEST_CALLGRIND"

// cpu returns the CPU time that Redis's main thread has used, in µs.
func cpu(b *testing.B, c *redis.Client) float64 {
	b.Helper()
	used, err := measure.CPU(context.Background(), c)
	testkit.Must(b, err)
	return float64(used.Nanoseconds()) / 1000
}

// reportPrice runs b.N calls of so many operations each, and reports what one operation costs Redis.
func reportPrice(b *testing.B, c *redis.Client, operations int, call func(i int) error) {
	b.Helper()
	price, unit := cpu, "redis-µs/op"
	if os.Getenv(callgrind) != "" {
		price, unit = instructions, "redis-instructions/op"
	}
	for i := range 20 { // loads the script, and does all work that is done only once
		testkit.Must(b, call(i))
	}
	before := price(b, c)
	b.ResetTimer()
	for i := range b.N {
		testkit.Must(b, call(i))
	}
	b.StopTimer()
	b.ReportMetric((price(b, c)-before)/float64(b.N*operations), unit)
}

// instructions returns how many instructions the server under callgrind has executed since it started.
func instructions(b *testing.B, _ *redis.Client) float64 {
	b.Helper()
	server := strings.SplitN(os.Getenv(callgrind), ",", 3)
	pid, out := server[1], server[2]
	if text, err := exec.Command("callgrind_control", "--dump", pid).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, text)
	}
	var sum float64 // a dump has the instructions since the dump before it
	for i := 1; ; i++ {
		text, err := os.ReadFile(out + "." + strconv.Itoa(i))
		if errors.Is(err, os.ErrNotExist) && i > 1 {
			return sum
		}
		testkit.Must(b, err)
		_, total, _ := strings.Cut(string(text), "\ntotals: ")
		n, err := strconv.ParseFloat(strings.TrimSpace(total), 64)
		testkit.Must(b, err)
		sum += n
	}
}

// BenchmarkCheck measures the price of one admitted and of one denied check, by the
// entries in the key's log. The price must not grow. An empty script is the yardstick.
func BenchmarkCheck(b *testing.B) {
	ctx, client := b.Context(), priceRedis(b)
	empty := redis.NewScript("return 1")
	b.Run("empty-script", func(b *testing.B) {
		reportPrice(b, client, 1, func(int) error { return empty.Run(ctx, client, nil).Err() })
	})
	for _, outcome := range []string{"admitted", "denied"} {
		for _, n := range []int{10, 100, 1_000, 10_000, 100_000, 1_000_000} {
			limit := map[string]int64{"admitted": farAway, "denied": int64(n)}[outcome]
			counter, rules, keys := priced(b, client, &windows.Rule{
				Windows: []windows.Window{{Limit: limit, Per: 24 * time.Hour}}})
			fill(b, client, keys.Counter(0, "log", "k"), n)
			ask := []counters.Request{{Plan: planOf(rules), Key: "k", Cost: 1}}
			b.Run(fmt.Sprintf("%s/entries=%d", outcome, n), func(b *testing.B) {
				reportPrice(b, client, 1, func(int) error {
					v, err := counter.Check(ctx, ask)
					if err == nil && v.Allowed != (outcome == "admitted") {
						err = fmt.Errorf("allowed is %t", v.Allowed)
					}
					return err
				})
			})
		}
	}
}

// fill makes a log of n entries of one unit each over the last day.
func fill(b *testing.B, c *redis.Client, log string, n int) {
	b.Helper()
	ctx, now := context.Background(), time.Now().UnixMilli()
	for i := 0; i < n; {
		pipe := c.Pipeline()
		for range min(10_000, n-i) {
			i++
			at := now - 80_000_000 + int64(float64(i)/float64(n)*79_000_000)
			pipe.Do(ctx, "XADD", log, strconv.FormatInt(at, 10)+"-*", "count", "1", "total", i)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

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
	testkit.Must(b, s.learn())
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
