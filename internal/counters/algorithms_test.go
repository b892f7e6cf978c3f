package counters_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// useRule sets one rule of an algorithm.
func (s *store) useRule(algorithm string, limit int64, per time.Duration) {
	s.t.Helper()
	s.rules = rulesOf(s.t, &windows.Rule{Name: "r", Match: "*", Algorithm: algorithm,
		Windows: []windows.Window{{Limit: limit, Per: per}}})
}

func (s *store) counter(key string) string {
	return s.keys.Counter(s.keys.Partition(key), lua.Form(s.rules.Match(key).Rules()[0].Algorithm), key)
}

// The clock of a key is never below the time of its newest event: after a step back,
// a server does not lose or admit anything. A caller must wait until the clock has caught up, too.
func TestClockThatStepsBack(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, s *store, algorithm string) {
		s.useRule(algorithm, 10, 10*time.Second)
		s.clock.ms = start + 9_999 // the last ms of an aligned window
		s.check("k", 4)
		s.clock.ms = start + 10_000 // and the first of the next
		s.check("k", 5)
		before := s.check("k", 6)
		s.clock.ms = start + 9_998
		after := s.check("k", 6)
		was, is := before.Items[0], after.Items[0]
		if after.Allowed != before.Allowed || is.Windows[0].Used != was.Windows[0].Used ||
			is.RetryAfter != was.RetryAfter+2*time.Millisecond ||
			is.Windows[0].EmptyMs != was.Windows[0].EmptyMs+2 {
			t.Fatalf("before the step %+v, after it %+v", before, after)
		}
		s.clock.ms += is.RetryAfter.Milliseconds() - 1
		if early := s.check("k", 6); early.Allowed {
			t.Errorf("a millisecond early: %+v", early)
		}
		s.clock.ms++
		if in := s.check("k", 6); !in.Allowed {
			t.Errorf("after the wait: %+v", in)
		}
	})
}

// sweepLevels sweeps each key of a partition that has reached a level, as a worker does after a reload.
func (s *store) sweepLevels(p int) {
	s.t.Helper()
	fields, err := s.store.Levelled(s.t.Context(), p)
	testkit.Must(s.t, err)
	_, _, err = s.store.Sweep(s.t.Context(), p, s.rules, fields)
	testkit.Must(s.t, err)
}

// The two-window estimate is exact in cases in which doubles are not: products above
// 2^53, and shares that floating point puts just below a whole millisecond.
func TestTwoWindowsKeepEveryDigit(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		ctx := context.Background()
		s.useRule("sliding-counter", windows.MaxLimit, 366*24*time.Hour)
		const window = 366 * 86_400_000
		random := rand.New(rand.NewPCG(1, 2))
		begin := s.clock.ms/window*window + window
		for i := range 300 {
			previous, current := 1<<52-1-random.Int64N(1<<30), random.Int64N(1000)
			s.clock.ms = begin + random.Int64N(window)
			if i == 0 { // a product of 2^53 and more, and a share that is just above a whole number
				previous, s.clock.ms = 625_956_778_273, begin+window-27_109_428_674
			}
			text := fmt.Sprintf("%d %d,%d,%d", begin, window, current, previous)
			testkit.Must(t, s.redis.Set(ctx, s.counter("k"), text, 0).Err())
			want := TwoWindows([]Happened{{Ms: begin - 1, Count: previous},
				{Ms: begin, Count: current}}, s.clock.ms, window)
			if n := used(t, s, "k"); n != want {
				t.Fatalf("%s at %d: used %d, expected %d", text, s.clock.ms, n, want)
			}
		}

		s.useRule("sliding-counter", 100, 10*time.Second)
		s.clock.ms = begin / 10_000 * 10_000
		s.check("w", 100)
		s.clock.ms += 10_000 // now all 100 are of the window before; 31 fit again when 69 are left
		if v := s.check("w", 31); v.Allowed || v.Items[0].RetryAfter != 3100*time.Millisecond {
			t.Fatalf("%+v, expected a wait of 3.1s", v)
		}
	})
}

// Totals of buckets have as many bytes as they need, and no value is lost when they
// need one more byte.
func TestBucketsWiden(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		for _, count := range []int64{65_535, 65_536, 1 << 24, 1<<32 - 1, 1 << 32, 1 << 39} {
			s.useRule(windows.SlidingBuckets, windows.MaxLimit, 6*time.Second) // 100 ms a bucket
			key := fmt.Sprint(count)
			for range 10 {
				s.clock.ms += 6000 - s.clock.ms%6000
				s.check(key, count)
				s.clock.ms += 100
				s.check(key, 1)
				if n := used(t, s, key); n != count+1 {
					t.Fatalf("%d and 1 make %d", count, n)
				}
				s.clock.ms += 5999 // the first bucket has left, the second has not
				if n := used(t, s, key); n != 1 {
					t.Fatalf("after %d, 1 is %d", count, n)
				}
			}
		}
	})
}

// TestTotalsStepBack is TestCounterEqualsRecount over counters whose running
// total is about to reach the point at which it is reduced (lua/meters/totals.lua,
// lua/meters/sliding-buckets.lua).
func TestTotalsStepBack(t *testing.T) {
	for a, era := range map[string]int64{"sliding-log": 1 << 52, "sliding-log-zset": 1 << 52,
		"sliding-buckets": 1 << 51} {
		t.Run(a, func(t *testing.T) {
			eachRedis(t, nil, func(t *testing.T, s *store) {
				eachTimeline(t, func(rt *rapid.T, prefix string) {
					l := newTimeline(rt, s, a, prefix)
					for _, key := range l.keys {
						total := era - rapid.Int64Range(-5, 100).Draw(rt, "below")
						old(rt, s, l.rule, key, s.clock.ms, total)
						l.oracle.Add(key, s.clock.ms, 1)
					}
					if rapid.Bool().Draw(rt, "at once") { // or in the middle of what follows
						s.clock.ms++
						l.appended = s.clock.ms
						for _, key := range l.keys {
							s.fold(rt, l.plan, counters.Event{Key: key, Ms: s.clock.ms, Count: 200})
							l.oracle.Add(key, s.clock.ms, 200)
							if n := totalOf(rt, s, l.rule, key); n >= era && a != windows.SlidingBuckets {
								rt.Fatalf("the total of %s is %d, it was to step back", key, n)
							}
						}
					}
					l.run()
					for _, key := range l.keys {
						if n := totalOf(rt, s, l.rule, key); n > 1<<53-1<<40 {
							rt.Fatalf("the total of %s is %d", key, n)
						}
					}
				})
			})
		})
	}
}

// The sums of an algorithm stay exact if a key has spent more than 2^53 units in total, in windows that are
// never empty. (No rule admits so much at once, so the script is called directly.)
func TestNoSumOutgrowsItsNumber(t *testing.T) {
	const cost, window = 1 << 46, 3_600_000
	eachAlgorithmInRedis(t, func(t *testing.T, s *store, a string) {
		p, oracle := s.keys.Partition("k"), Oracle{Formula: formulaOf(a)}
		keys := []string{s.keys.Levels(p), s.keys.Due(p), s.keys.Outbox(p), s.keys.Counter(p, lua.Form(a), "k")}
		plan := &lua.Plan{Meters: []lua.Meter{{Algorithm: a, Setting: testBuckets, SpanMs: window, Windows: []int{1}}},
			Rules: []lua.Rule{{Name: "r", Algorithm: a, Windows: []lua.Window{{Ms: window, Limit: 1 << 50}}}}}
		for total := int64(0); total < 1<<53+10*cost; total += cost {
			s.clock.ms += window/2 + 1_234
			r := lua.NewCaller(s.redis).Call(t.Context(), "check", []*lua.Plan{plan}, keys, s.clock.ms, 1+16384,
				plan.Text(), cost)
			_, _, state := r.Integer(), r.Integer(), r.AnswerWithShadows(plan)
			testkit.Must(t, r.End())
			oracle.Add("k", s.clock.ms, cost)
			used := state.Windows[0].Used
			if want := oracle.Used("k", s.clock.ms, window); used != want {
				t.Fatalf("after %d units used %d, recount says %d", total, used, want)
			}
		}
	})
}

// old makes the counter of a key that has counted `total` units, one of them now.
func old(t failer, s *store, rule *windows.Rule, key string, now, total int64) {
	ctx := context.Background()
	name := s.keys.Counter(s.keys.Partition(key), lua.Form(rule.Algorithm), key)
	var err error
	switch rule.Algorithm {
	case "sliding-log":
		err = s.redis.XAdd(ctx, &redis.XAddArgs{Stream: name, ID: fmt.Sprintf("%d-0", now),
			Values: []any{"count", 1, "total", total}}).Err()
	case "sliding-log-zset":
		err = s.redis.ZAdd(ctx, name, redis.Z{Score: float64(now), Member: fmt.Sprintf("%016d:1", total)}).Err()
	case "sliding-buckets":
		head, rings := fmt.Sprint(now), ""
		for _, w := range rule.Windows {
			ms := w.Per.Milliseconds()
			width := (ms + rule.Buckets - 1) / rule.Buckets
			head += fmt.Sprintf(" %d,%d,7,%d", ms, rule.Buckets, total)
			before := string([]byte{byte((total - 1) >> 48), byte((total - 1) >> 40), byte((total - 1) >> 32),
				byte((total - 1) >> 24), byte((total - 1) >> 16), byte((total - 1) >> 8), byte(total - 1)})
			rings += strings.Repeat(before, int((ms-1)/width+2))
		}
		err = s.redis.Set(ctx, name, head+"\n"+rings, 0).Err()
	}
	testkit.Must(t, err)
}

// totalOf returns the running total of a counter. A counter that does not exist has 0.
func totalOf(t failer, s *store, rule *windows.Rule, key string) (total int64) {
	ctx := context.Background()
	name := s.keys.Counter(s.keys.Partition(key), lua.Form(rule.Algorithm), key)
	switch rule.Algorithm {
	case "sliding-log":
		if list := s.redis.XRevRangeN(ctx, name, "+", "-", 1).Val(); len(list) > 0 {
			fmt.Sscan(list[0].Values["total"].(string), &total)
		}
	case "sliding-log-zset":
		if list := s.redis.ZRange(ctx, name, -1, -1).Val(); len(list) > 0 {
			fmt.Sscanf(list[0], "%d:", &total)
		}
	case "sliding-buckets":
		head, _, _ := strings.Cut(s.redis.Get(ctx, name).Val(), "\n")
		if i := strings.LastIndexByte(head, ','); i > 0 {
			fmt.Sscan(head[i+1:], &total)
		}
	}
	return total
}

// After twenty-four days of steady traffic, by the hour and by the second, a counter is
// as large as after the first days.
func TestSteadyKeysDoNotGrow(t *testing.T) {
	for _, a := range windows.Algorithms {
		t.Run(a, func(t *testing.T) {
			s := securedStore(t, nil)
			s.useRule(a, 1000, time.Hour)
			testkit.Must(t, s.learn())
			var early int64
			for hour := range 24 * 24 {
				for range 6 {
					s.clock.ms += 600_000
					if hour%24 == 9 { // a busy hour a day
						s.clock.ms += 50
						s.check("k", 3)
					}
					s.check("k", 1)
				}
				size, err := s.redis.MemoryUsage(context.Background(), s.counter("k")).Result()
				testkit.Must(t, err)
				if hour < 10*24 {
					early = max(early, size)
				} else if size > early {
					t.Fatalf("after %d hours it takes %d B, in the first ten days at most %d", hour, size, early)
				}
			}
		})
	}
}

// However many entries are too old, one write removes at most some 10,000, and a log
// whose entries are all too old is removed at once, in the background.
func TestLogsAreTrimmedInSteps(t *testing.T) {
	const day = 86_400_000
	for a, entries := range map[string]int64{"sliding-log": 1_000_000, "sliding-log-zset": 100_000} {
		t.Run(a, func(t *testing.T) {
			ctx := context.Background()
			s := securedStore(t, nil)
			s.useRule(a, windows.MaxLimit, 24*time.Hour)
			testkit.Must(t, s.learn())
			for i := int64(0); i < entries; {
				pipe := s.redis.Pipeline()
				for range 10_000 {
					i++
					at := start + i*day/entries
					if a == "sliding-log" {
						pipe.Do(ctx, "XADD", s.counter("k"), fmt.Sprintf("%d-*", at), "count", 1, "total", i)
					} else {
						pipe.Do(ctx, "ZADD", s.counter("k"), at, fmt.Sprintf("%016d:1", i))
					}
				}
				if _, err := pipe.Exec(ctx); err != nil {
					t.Fatal(err)
				}
			}
			length := func() int64 {
				if a == "sliding-log" {
					return s.redis.XLen(ctx, s.counter("k")).Val()
				}
				return s.redis.ZCard(ctx, s.counter("k")).Val()
			}
			s.clock.ms = start + day + day/2 // half of them have aged
			units := entries / 2
			for left := length(); left > entries/2+10_000; {
				v := s.check("k", 2500)
				units += 2500
				if got := v.Items[0].Windows[0].Used; got != units {
					t.Fatalf("used %d, expected %d", got, units)
				}
				now := length()
				if left-now > 10_100 {
					t.Fatalf("one check took %d entries away", left-now)
				}
				if units > 3*entries {
					t.Fatalf("%d are left", now)
				}
				left = now
			}
			s.clock.ms += 2 * day
			before := length()
			if v := s.check("k", 1); v.Items[0].Windows[0].Used != 1 || before-length() > 10_100 {
				t.Fatalf("two days later: %+v, %d entries of %d", v, length(), before)
			}
		})
	}
}
