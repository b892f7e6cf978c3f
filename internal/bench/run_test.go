package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/streamcounter/streamcounter/internal/measure"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// small is a run of a few hundred operations of each part.
func small() Config {
	return Config{Algorithms: windows.Algorithms, Keys: 30, Partitions: 4, Batch: 50, Connections: 4, Count: 300,
		Warmup: -1, Per: windows.MaxWindow} // so long that no fixed window ends within a test
}

func TestCountersAddUp(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		// Those of others, as near as they come.
		for _, other := range []string{"sc-bench", "sc-bench-:{0}:events", "sc:{0}:log:user:1"} {
			testkit.Must(t, c.Set(t.Context(), other, "theirs", 0).Err())
			t.Cleanup(func() { _ = c.Del(context.Background(), other) })
		}
		report, err := Run(t.Context(), c, small())
		testkit.Must(t, err)
		if want := 1 + 3*len(windows.Algorithms); len(report.Parts) != want {
			t.Fatalf("%d parts, want %d", len(report.Parts), want)
		}
		if n, first := report.Errors(); n != 0 {
			t.Errorf("%d errors, the first: %s", n, first)
		}
		told := report.RedisVersion != ""
		for _, p := range report.Parts {
			calls, yardsticks := int64(300), "GET, empty script"
			switch p.Operation {
			case Append:
				calls, yardsticks = 6, "XADD"
			case Fold:
				calls, yardsticks = 0, "XREADGROUP+XACK"
				if *p.Appended != 300 || *p.Folded != 300 || *p.Late != 0 || *p.Gone != 0 {
					t.Errorf("%s %s: %d appended, %d folded, %d late, %d gone", p.Operation, p.Algorithm, *p.Appended,
						*p.Folded, *p.Late, *p.Gone)
				}
			case Check:
				yardsticks += ", GCRA"
				if *p.Admitted != 300 || *p.Denied != 0 {
					t.Errorf("%s %s: %d admitted, %d denied", p.Operation, p.Algorithm, *p.Admitted, *p.Denied)
				}
			}
			var names []string
			all := []Figures{p.Figures}
			for _, y := range p.Yardsticks {
				names, all = append(names, y.Name), append(all, y.Figures)
				if (y.XYardstick != nil) != told || (y.XYardstickMedian != nil) != told || y.XYardstickWall == nil {
					t.Errorf("%s %s: the ratios to %s are %v, %v, %v", p.Operation, p.Algorithm, y.Name, y.XYardstick,
						y.XYardstickMedian, y.XYardstickWall)
				}
			}
			if strings.Join(names, ", ") != yardsticks {
				t.Errorf("%s %s: yardsticks %v, want %s", p.Operation, p.Algorithm, names, yardsticks)
			}
			for _, f := range all {
				if f.Operations != 300 || f.Errors != 0 || calls > 0 && f.Calls != calls ||
					(f.RedisCPUUsPerOp != nil) != told || f.OpsPerS <= 0 || f.P50Us <= 0 || f.MaxUs < f.P50Us {
					t.Errorf("%s %s: %+v", p.Operation, p.Algorithm, f)
				}
			}
			if p.Loop != "closed" || p.RatePerS != nil {
				t.Errorf("%s %s: the loop is %s", p.Operation, p.Algorithm, p.Loop)
			}
			if p.Operation == Check || p.Operation == Fold {
				if *p.UsedPerKeyBefore != 0 || *p.UsedPerKeyAfter < 9 || *p.UsedPerKeyAfter > 10 {
					t.Errorf("%s %s: a key had used %v before and %v after, want 0 and 10", p.Operation, p.Algorithm,
						*p.UsedPerKeyBefore, *p.UsedPerKeyAfter)
				}
			}
		}
		if left := keysLike(t, c, report.Prefix+"*"); len(left) > 0 {
			t.Errorf("it left %v", left)
		}
		if left := keysLike(t, c, "sc*"); len(left) != 3 {
			t.Errorf("of others' keys %v are left", left)
		}
	})
}

func TestDenyAndRate(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		cfg := small()
		cfg.Algorithms, cfg.Operations = nil, []string{Check}
		cfg.Deny, cfg.Entries, cfg.Per, cfg.Rate = true, 5, time.Hour, 5000
		report, err := Run(t.Context(), c, cfg)
		testkit.Must(t, err)
		p := report.Parts[0]
		if *p.Admitted != 0 || *p.Denied != 300 || *p.UsedPerKeyBefore != 5 || *p.UsedPerKeyAfter != 5 {
			t.Errorf("%d admitted, %d denied, used %v and %v", *p.Admitted, *p.Denied, *p.UsedPerKeyBefore,
				*p.UsedPerKeyAfter)
		}
		if p.Loop != "open" || *p.RatePerS != 5000 || p.MaxLateStartUs == nil || p.OpsPerS > 5000 {
			t.Errorf("loop %s at %v, %v/s", p.Loop, *p.RatePerS, p.OpsPerS)
		}
		for _, y := range p.Yardsticks {
			if y.Operations != 300 || y.XYardstickWall != nil {
				t.Errorf("%s: %d operations, wall %v", y.Name, y.Operations, y.XYardstickWall)
			}
		}
	})
}

func TestGCRAKeepsItsLimit(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		cfg := Config{Limit: 3, Per: time.Hour, Entries: 2, Keys: 1}.withDefaults()
		r, err := newRoom(&cfg, c, streamtest.Prefix(t), windows.DefaultAlgorithm)
		testkit.Must(t, err)
		g, err := r.gcra(t.Context())
		testkit.Must(t, err)
		var got result
		for range 5 {
			one, err := g.call(t.Context(), []int{0}, 0)
			testkit.Must(t, err)
			got.add(one)
		}
		if got.admitted != 1 || got.denied != 4 { // two of three is what it began with
			t.Errorf("%d admitted, %d denied, want 1 and 4", got.admitted, got.denied)
		}
		reply, err := gcraScript.Run(t.Context(), r.redis, r.yardKeys("gcra"), 3, cfg.Per.Microseconds(),
			1).Int64Slice()
		if err != nil || reply[0] != 0 || reply[1] != 0 || reply[2] < 1_190_000 || reply[2] > 1_200_000 ||
			reply[3] < 3_590_000 {
			t.Errorf("it says %v (%v), want none left, the next in 20 minutes, all in an hour", reply, err)
		}
		// A whole limit at once fits, and one more does not.
		burst := []string{r.yard(0, "burst")}
		for _, c := range []struct{ cost, want int64 }{{3, 1}, {1, 0}} {
			if reply, err := gcraScript.Run(t.Context(), r.redis, burst, 3, cfg.Per.Microseconds(),
				c.cost).Int64Slice(); err != nil || reply[0] != c.want {
				t.Errorf("a cost of %d: %v (%v), want %d", c.cost, reply, err, c.want)
			}
		}
		// Nor does a long silence let more in than the limit.
		silent := []string{r.yard(0, "silent")}
		testkit.Must(t, r.redis.Set(t.Context(), silent[0], time.Now().Add(-10*time.Hour).UnixMicro(), 0).Err())
		if reply, err := gcraScript.Run(t.Context(), r.redis, silent, 3, cfg.Per.Microseconds(),
			4).Int64Slice(); err != nil || reply[0] != 0 {
			t.Errorf("a cost of 4 after ten hours: %v (%v), want it denied", reply, err)
		}
		testkit.Must(t, measure.Remove(t.Context(), r.redis, r.keys.Prefix+":"))
	})
}

// The contestants take turns at going first, over the same keys.
func TestContestantsTakeTurns(t *testing.T) {
	cfg := Config{Count: 9, Connections: 1}.withDefaults()
	var order []string
	picked := map[string][]int{}
	who := func(name string) contestant {
		return contestant{name: name, call: func(_ context.Context, picks []int, i int) (result, error) {
			if i == 0 {
				order = append(order, name)
			}
			picked[name] = append(picked[name], picks[i])
			return result{ops: 1}, nil
		}}
	}
	p := &part{operation: Check, progress: func(string, float64) {}, least: 3, product: who("product"),
		yardsticks: []contestant{who("a"), who("b")}}
	m := &meter{cfg: &cfg, redis: streamtest.Connect(t, "redis://"+streamtest.EmbeddedRedis(t).Addr()), part: p,
		choose: newChooser(&cfg)}
	testkit.Must(t, m.measure(t.Context()))
	if got := strings.Join(order, " "); got != "product a b a b product b product a" {
		t.Errorf("they came in the order %s", got)
	}
	if len(picked["product"]) != 9 || !slices.Equal(picked["product"], picked["a"]) ||
		!slices.Equal(picked["a"], picked["b"]) {
		t.Errorf("they were given different keys: %v", picked)
	}
}

// What no slice needs any more does not pile up.
func TestStreamsAreEmptied(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		cfg := Config{Keys: 20, Partitions: 2}.withDefaults()
		r, err := newRoom(&cfg, c, streamtest.Prefix(t), windows.DefaultAlgorithm)
		testkit.Must(t, err)
		t.Cleanup(func() { _ = measure.Remove(context.Background(), c, r.keys.Prefix+":") })
		who := r.xadd()
		if _, err := who.call(t.Context(), []int{1, 2, 3, 4, 5, 6, 7, 8}, 0); err != nil {
			t.Fatal(err)
		}
		if n := c.XLen(t.Context(), r.yardEvents(0)).Val() + c.XLen(t.Context(), r.yardEvents(1)).Val(); n != 8 {
			t.Fatalf("%d events, want 8", n)
		}
		testkit.Must(t, who.tidy(t.Context()))
		for p := range 2 {
			if n, ttl := c.XLen(t.Context(), r.yardEvents(p)).Val(), c.PTTL(t.Context(),
				r.yardEvents(p)).Val(); n != 0 || ttl <= 0 {
				t.Errorf("after tidying partition %d has %d events, for %s", p, n, ttl)
			}
		}
	})
}

func TestOnlyChecksAndPeeksHaveARate(t *testing.T) {
	for op, want := range map[string]bool{Append: false, Fold: false, Check: true, Peek: true} {
		if got := (&meter{cfg: &Config{Rate: 1}, part: &part{operation: op}}).open(); got != want {
			t.Errorf("%s in an open loop: %t", op, got)
		}
		if (&meter{cfg: &Config{}, part: &part{operation: op}}).open() {
			t.Errorf("%s without a rate is in an open loop", op)
		}
	}
}

var errPlanted = errors.New("planted")

// failing lets every fifth check fail. Each sends one EVALSHA, of four keys; no
// other script of a run has four.
type failing struct{ n atomic.Int64 }

func (f *failing) DialHook(next redis.DialHook) redis.DialHook { return next }
func (f *failing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (f *failing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		// A check by the quick script: one counter, and now, rules and counters.
		args := cmd.Args()
		if cmd.Name() == "evalsha" && strings.Contains(fmt.Sprint(args[3]), ":log:") && len(args) == 7 &&
			f.n.Add(1)%5 == 0 {
			cmd.SetErr(errPlanted)
			return errPlanted
		}
		return next(ctx, cmd)
	}
}

func TestErrorsAreCountedAndShown(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		c.AddHook(&failing{})
		cfg := small()
		cfg.Operations = []string{Check}
		cfg.Algorithms = nil
		report, err := Run(t.Context(), c, cfg)
		testkit.Must(t, err)
		p := report.Parts[0]
		if p.Errors != 60 || p.Operations != 240 || p.Calls != 300 || *p.Admitted != 240 ||
			!strings.Contains(p.FirstError, "planted") {
			t.Errorf("%d errors (%s), %d operations of %d calls, %d admitted", p.Errors, p.FirstError, p.Operations,
				p.Calls, *p.Admitted)
		}
		if n, first := report.Errors(); n != 60 || first != p.FirstError {
			t.Errorf("the report has %d errors, the first %q", n, first)
		}
		var text strings.Builder
		if err := report.WriteText(&text); err != nil || !strings.Contains(text.String(), "first error: ") {
			t.Errorf("the text does not show the error (%v):\n%s", err, text.String())
		}
	})
}

// Whenever it is cut off, what was measured is reported, no key is left, and no
// goroutine.
func TestACutOffRunLeavesNothing(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, first *redis.Client) {
		for _, at := range []string{"filling for fold", "check sliding-log"} {
			t.Run(at, func(t *testing.T) {
				before := goleak.IgnoreCurrent()
				c := streamtest.Connect(t, first.Options().Addr)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				cfg := small()
				cfg.Algorithms, cfg.Entries = nil, 20
				cfg.Operations = []string{Append, Fold, Check, Peek}
				cfg.Count = 1000
				times := 0
				cfg.Progress = func(part string, done float64) {
					if strings.HasPrefix(part, at) {
						if times++; times == 3 {
							cancel()
						}
					}
				}
				report, err := Run(ctx, c, cfg)
				if !errors.Is(err, context.Canceled) {
					t.Fatalf("it ended with %v", err)
				}
				var parts []string
				for _, p := range report.Parts {
					parts = append(parts, p.Operation)
				}
				want := "append"
				if at == "check sliding-log" {
					want = "append fold check"
					// Two rounds of the five were done when it was cut off, 200 each.
					if p := report.Parts[2]; p.Operations != 400 || p.Yardsticks[0].Operations != 400 || p.Slices != 2 {
						t.Errorf("it reports %d checks in %d slices, want the 400 in 2 that were done", p.Operations,
							p.Slices)
					}
				}
				if got := strings.Join(parts, " "); got != want {
					t.Errorf("it reports %s, want %s", got, want)
				}
				if left := keysLike(t, c, report.Prefix+"*"); len(left) > 0 {
					t.Errorf("it left %v", left)
				}
				_ = c.Close()
				goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction(
					"github.com/alicebob/miniredis/v2/server.(*Server).servePeer"),
					goleak.IgnoreAnyFunction(
						"github.com/redis/go-redis/v9/internal/pool.(*ConnPool).queuedNewConn.func2"))
			})
		}
	})
}
