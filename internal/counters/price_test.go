package counters_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/measure"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
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
	ctx := context.Background()
	sizes := []int{10, 100, 1_000, 10_000, 100_000, 1_000_000}
	client := priceRedis(b)
	keys, err := stream.NewKeys("price", 1)
	testkit.Must(b, err)
	counter := counters.New(client, keys)
	empty := redis.NewScript("return 1")
	for _, outcome := range []string{"admitted", "denied"} {
		for _, n := range sizes {
			b.Run(fmt.Sprintf("%s/entries=%d", outcome, n), func(b *testing.B) {
				limit := int64(n)
				if outcome == "admitted" {
					limit = 1_000_000_000
				}
				rule := planOf(rulesOf(b, &windows.Rule{Name: "api", Match: "*",
					Windows: []windows.Window{{Limit: limit, Per: 24 * time.Hour}}}))
				key := fmt.Sprintf("%s-%d", outcome, n)
				fill(b, client, keys.Counter(0, "log", key), n)
				ask := []counters.Request{{Plan: rule, Key: key, Cost: 1}}
				var checks, scripts float64
				b.ResetTimer()
				for left := b.N; left > 0; left -= 500 {
					some := min(left, 500)
					start := cpu(b, client)
					for range some {
						v, err := counter.Check(ctx, ask)
						if err != nil || v.Allowed != (outcome == "admitted") {
							b.Fatal(v.Allowed, err)
						}
					}
					middle := cpu(b, client)
					for range some {
						testkit.Must(b, empty.Run(ctx, client, nil).Err())
					}
					checks += middle - start
					scripts += cpu(b, client) - middle
				}
				b.StopTimer()
				b.ReportMetric(checks/float64(b.N), "redis-µs/check")
				b.ReportMetric(scripts/float64(b.N), "empty-script-µs")
				b.ReportMetric(checks/scripts, "x-empty")
			})
		}
	}
}

// fill makes a log of n entries of one unit each over the last day.
func fill(b *testing.B, c *redis.Client, log string, n int) {
	b.Helper()
	ctx := context.Background()
	if c.Exists(ctx, log).Val() == 1 {
		return
	}
	now := time.Now().UnixMilli()
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
