package producers_test

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// Keys whose partition is often computed wrongly: braces of all kinds, CRC-32 above 2^31, and characters beyond
// ASCII.
var appended = map[string]int64{
	"user:42": 3, "{tenant1}:a": 1, "{tenant1}:b": 1_000_000_000, "{}:a": 2, "a{}b": 2, "a{": 1, "a}b{c": 4,
	"}{x}": 5, "{{x}}": 6, "{a}{b}": 7,
	"ключ": 8, "x{é}y": 9, "/a/b?c=d": 10, "a": 11, "ip:2001:db8::/64": 12,
}

// publishNothing replaces NATS.
type publishNothing struct{}

func (publishNothing) Publish(context.Context, []api.Transition, int) error { return nil }

func TestProducers(t *testing.T) {
	for program, script := range map[string]string{"python3": "append.py", "php": "append.php"} {
		t.Run(program, func(t *testing.T) {
			bin := streamtest.Program(t, program)
			url := streamtest.Redis(t)
			c := streamtest.Connect(t, url)
			keys, err := stream.NewKeys(streamtest.Prefix(t), 7)
			testkit.Must(t, err)
			var lines strings.Builder
			want := map[string]int64{}
			for key, count := range appended {
				fmt.Fprintf(&lines, "%s %d\n", key, count)
				want[key] += count
			}
			lines.WriteString("user:42\r\n\n") // without a count, from another system
			want["user:42"]++
			run := func(args ...string) (string, error) {
				cmd := exec.CommandContext(t.Context(), bin, append([]string{script}, args...)...)
				cmd.Stdin = strings.NewReader(lines.String())
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			if out, err := run(c.Options().Addr, keys.Prefix, "7"); err != nil ||
				out != fmt.Sprintf("appended %d events\n", len(appended)+1) {
				t.Fatalf("%v: %s", err, out)
			}

			// As they are in the log: each in its partition, for as long as the retention.
			got := map[string]int64{}
			for _, p := range keys.All() {
				entries, err := c.XRange(t.Context(), keys.Events(p), "-", "+").Result()
				testkit.Must(t, err)
				for _, e := range entries {
					key, count := fmt.Sprint(e.Values["key"]), fmt.Sprint(e.Values["count"])
					if keys.Partition(key) != p {
						t.Errorf("%s is in partition %d, want %d", key, p, keys.Partition(key))
					}
					n, err := strconv.ParseInt(count, 10, 64)
					if err != nil {
						t.Errorf("%s has the count %s", key, count)
					}
					got[key] += n
				}
				if ttl := c.PTTL(t.Context(), keys.Events(p)).Val(); len(entries) > 0 &&
					(ttl <= 9*time.Minute || ttl > 10*time.Minute) {
					t.Errorf("partition %d is kept for %s, want 10 minutes", p, ttl)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("in the log: %v\nwant:       %v", got, want)
			}
			counted(t, c, keys, want)

			// The key is not a stream, or no server answers: an error, with an exit code.
			testkit.Must(t, c.Set(t.Context(), keys.Events(keys.Partition("a")), "none", 0).Err())
			if out, err := run(c.Options().Addr, keys.Prefix, "7"); err == nil || !strings.Contains(out, "WRONGTYPE") {
				t.Errorf("refused: %v, %s", err, out)
			}
			if out, err := run("127.0.0.1:1"); err == nil {
				t.Errorf("nobody there: %s", out)
			}
		})
	}
}

// counted lets a worker fold all events, and checks the counts.
func counted(t *testing.T, c *redis.Client, keys *stream.Keys, want map[string]int64) {
	t.Helper()
	rules, err := windows.NewRules([]*windows.Rule{{Name: "any", Match: "*",
		Windows: []windows.Window{{Limit: windows.MaxLimit, Per: time.Hour}}}})
	testkit.Must(t, err)
	blocking := redis.NewClient(c.Options())
	defer blocking.Close()
	counter := counters.New(c, keys)
	pool, err := consumers.NewPool(consumers.Config{Redis: c, Blocking: blocking, Publisher: publishNothing{},
		Keys: keys, Counter: counter, Rules: windows.Fixed(rules).Rules,
		Metrics: consumers.NewMetrics(prometheus.NewRegistry())})
	testkit.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pool.Run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	for key, n := range want {
		streamtest.Eventually(t, 30*time.Second, key+" is counted", func() (bool, string) {
			st, err := counter.Peek(t.Context(), rules.Match(key), key)
			if err != nil {
				return false, err.Error()
			}
			return st.Windows[0].Used == n, fmt.Sprint(st.Windows[0].Used, " of ", n)
		})
	}
}
