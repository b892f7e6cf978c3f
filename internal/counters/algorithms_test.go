package counters_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// one sets one rule of an algorithm as a store's rules, and returns a tale of it.
func one(t *testing.T, s *store, algorithm string, limit int64, per time.Duration) tale {
	t.Helper()
	s.rules = rulesOf(t, &windows.Rule{Name: "r", Match: "*", Algorithm: algorithm,
		Windows: []windows.Window{{Limit: limit, Per: per}}})
	return tale{t, s}
}

func (x tale) counter(key string) string {
	return x.s.keys.Counter(x.s.keys.Partition(key), lua.Form(x.s.rules.Match(key).Rules()[0].Algorithm), key)
}

// The clock of a key is never below the time of its newest event: after a step back,
// a server does not lose or admit anything. A caller must wait until the clock has caught up, too.
func TestClockThatStepsBack(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, s *store, algorithm string) {
		x := one(t, s, algorithm, 10, 10*time.Second)
		s.clock.ms = start + 9_999 // the last ms of an aligned window
		x.check("k", 4)
		s.clock.ms = start + 10_000 // and the first of the next
		x.check("k", 5)
		before := x.check("k", 6)
		s.clock.ms = start + 9_998
		after := x.check("k", 6)
		was, is := before.Items[0], after.Items[0]
		if after.Allowed != before.Allowed || is.Windows[0].Used != was.Windows[0].Used ||
			is.RetryAfter != was.RetryAfter+2*time.Millisecond ||
			is.Windows[0].EmptyMs != was.Windows[0].EmptyMs+2 {
			t.Fatalf("before the step %+v, after it %+v", before, after)
		}
		s.clock.ms += is.RetryAfter.Milliseconds() - 1
		if early := x.check("k", 6); early.Allowed {
			t.Errorf("a millisecond early: %+v", early)
		}
		s.clock.ms++
		if in := x.check("k", 6); !in.Allowed {
			t.Errorf("after the wait: %+v", in)
		}
	})
}

// A counter expires, and not before its longest window has passed.
func TestEveryCounterExpires(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		for _, a := range windows.Algorithms {
			x := one(t, s, a, 1000, time.Hour)
			for _, add := range []func(){
				func() { x.check("k", 1) },
				func() { s.fold(t, nil, counters.Event{Key: "k", Ms: s.clock.ms, Count: 1}) },
			} {
				add()
				s.clock.ms += 60_000
				ttl, err := s.redis.PTTL(context.Background(), x.counter("k")).Result()
				if err != nil || ttl < time.Hour-time.Minute || ttl > 2*time.Hour {
					t.Errorf("%s expires in %v, %v", a, ttl, err)
				}
			}
		}
	})
}

// A counter that is written while the clock is behind the key's newest event expires that much later. Otherwise it
// would be gone before its window when the clock is right again.
func TestACounterOutlivesAClockThatStepsBack(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		for _, a := range []string{windows.SlidingBuckets, "sliding-counter", "fixed-window"} {
			x := one(t, s, a, 1000, time.Hour)
			x.check("k", 1)
			s.clock.ms -= 40 * 60_000
			x.check("k", 1)
			if ttl := s.redis.PTTL(t.Context(), x.counter("k")).Val(); ttl < 99*time.Minute {
				t.Errorf("%s expires in %v", a, ttl)
			}
			s.clock.ms += 40 * 60_000
		}
	})
}

// If a rule changes its algorithm while its keys are in use, each key begins with nothing, and a throttled key is
// released at once. An old counter is not read, it expires, and a reset removes it.
func TestChangeOfAlgorithm(t *testing.T) {
	for i, from := range windows.Algorithms {
		for _, step := range []int{1, len(windows.Algorithms) - 1} { // counters of two algorithms share nothing
			to := windows.Algorithms[(i+step)%len(windows.Algorithms)]
			t.Run(from+" to "+to, func(t *testing.T) {
				eachRedis(t, nil, func(t *testing.T, s *store) {
					x := changing(t, s, from, "{limit: 10, per: 1h}")
					p := s.keys.Partition("k")
					old := x.counter("k")
					x.check("k", 10)
					x.expect("raised r/k 80% used 10", "raised r/k 100% used 10", "throttled r/k 100% used 10")
					x = changing(t, s, to, "{limit: 10, per: 1h}")
					x.sweepLevels(p)
					x.expect("released r/k 100% used 0", "cleared r/k 100% used 0", "cleared r/k 80% used 0")
					if due := x.due("k"); due != -1 {
						t.Errorf("k is due in %d ms, expected never", due)
					}
					if v := x.check("k", 3); !v.Allowed || v.Items[0].Windows[0].Used != 3 {
						t.Fatalf("it begins with %+v", v)
					}
					if ttl := s.redis.PTTL(t.Context(), old).Val(); ttl <= 0 || ttl > 2*time.Hour {
						t.Errorf("%s lives for %v", old, ttl)
					}
					had, err := s.Reset(t.Context(), s.rules.Match("k"), "k")
					if n := s.redis.Exists(t.Context(), old, x.counter("k")).Val(); !had || err != nil || n != 0 {
						t.Errorf("reset: %t, %v, and %d counters are left", had, err, n)
					}
				})
			})
		}
	}
}

// Slots that are in flight stay taken when their rule changes its algorithm, and so does the decision about them.
func TestSlotsOutliveAChangeOfAlgorithm(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		slots := "{limit: 2, in_flight: 1m}, {limit: 100, per: 1h}"
		x := changing(t, s, windows.DefaultAlgorithm, slots)
		id, v := x.reserve("a", 2, time.Minute, "k")
		if s.transitions(t); !v.Allowed {
			t.Fatalf("%+v", v)
		}
		for _, a := range append(windows.Algorithms, windows.DefaultAlgorithm) {
			x = changing(t, s, a, slots)
			x.sweepLevels(s.keys.Partition("k"))
			x.expect()
			if _, v := x.reserve("b", 1, time.Second, "k"); v.Allowed || v.Items[0].Windows[0].Used != 2 {
				t.Errorf("%s: %+v", a, v)
			}
		}
		x.settle(reservations.Commit, id, 2, time.Minute)
		if _, v := x.reserve("c", 1, time.Second, "k"); !v.Allowed || v.Items[0].Windows[1].Used != 3 {
			t.Errorf("after the commit: %+v", v)
		}
	})
}

// changing sets one rule of an algorithm in a store, as a reload does.
func changing(t *testing.T, s *store, algorithm, list string) tale {
	t.Helper()
	x := tale{t, s}
	x.rules("  - {name: r, match: '*', hold: 0s, alerts: [80%], algorithm: " + algorithm + ", windows: [" + list + "]}")
	return x
}

// sweepLevels sweeps each key of a partition that has reached a level, as a worker does after a reload.
func (x tale) sweepLevels(p int) {
	x.t.Helper()
	fields, err := x.s.store.Levelled(x.t.Context(), p)
	testkit.Must(x.t, err)
	_, _, err = x.s.store.Sweep(x.t.Context(), p, x.s.rules, fields)
	testkit.Must(x.t, err)
}

// If a rule gets or loses windows, the count of the other windows does not change.
func TestChangeOfWindows(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		for _, a := range windows.Algorithms {
			key, hour, minute := "k"+lua.Form(a), windows.Window{Limit: 100, Per: time.Hour},
				windows.Window{Limit: 50, Per: time.Minute}
			for i, list := range [][]windows.Window{{hour}, {minute, hour}, {hour, minute}, {hour}} {
				s.rules = rulesOf(t, &windows.Rule{Name: "r", Match: "*", Algorithm: a, Windows: list})
				v := tale{t, s}.check(key, 1)
				for w, use := range v.Items[0].Windows {
					if list[w] == hour && use.Used != int64(i)+1 {
						t.Errorf("%s, step %d: the hour holds %d, expected %d", a, i, use.Used, i+1)
					}
				}
			}
		}
	})
}

// The two-window estimate is exact in cases in which doubles are not: products above
// 2^53, and shares that floating point puts just below a whole millisecond.
func TestTwoWindowsKeepEveryDigit(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		ctx := context.Background()
		x := one(t, s, "sliding-counter", windows.MaxLimit, 366*24*time.Hour)
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
			testkit.Must(t, s.redis.Set(ctx, x.counter("k"), text, 0).Err())
			want := TwoWindows([]Happened{{Ms: begin - 1, Count: previous},
				{Ms: begin, Count: current}}, s.clock.ms, window)
			if n := used(t, s, "k"); n != want {
				t.Fatalf("%s at %d: used %d, expected %d", text, s.clock.ms, n, want)
			}
		}

		x = one(t, s, "sliding-counter", 100, 10*time.Second)
		s.clock.ms = begin / 10_000 * 10_000
		x.check("w", 100)
		s.clock.ms += 10_000 // now all 100 are of the window before; 31 fit again when 69 are left
		if v := x.check("w", 31); v.Allowed || v.Items[0].RetryAfter != 3100*time.Millisecond {
			t.Fatalf("%+v, expected a wait of 3.1s", v)
		}
	})
}

// Totals of buckets have as many bytes as they need, and no value is lost when they
// need one more byte.
func TestBucketsWiden(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		for _, count := range []int64{65_535, 65_536, 1 << 24, 1<<32 - 1, 1 << 32, 1 << 39} {
			x := one(t, s, windows.SlidingBuckets, windows.MaxLimit, 6*time.Second) // 100 ms a bucket
			key := fmt.Sprint(count)
			for range 10 {
				s.clock.ms += 6000 - s.clock.ms%6000
				x.check(key, count)
				s.clock.ms += 100
				x.check(key, 1)
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

// fallsBelow returns after how long an algorithm counts fewer units than came at `at`.
func fallsBelow(algorithm string, at, units, window int64) time.Duration {
	events, wait := []Happened{{Ms: at, Put: at, Count: units}}, int64(0)
	for formulaOf(algorithm)(events, at+wait, window) >= units {
		wait++
	}
	return ms(wait)
}

// Levels go up and down with the count of the algorithm: 10 units at one second
// into an aligned window of 10 s are below the limit again after fallsBelow.
func TestLevelsInEveryAlgorithm(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		for _, a := range windows.Algorithms {
			rule := &windows.Rule{Name: a, Match: "*", Algorithm: a, Windows: []windows.Window{{Limit: 10,
				Per: 10 * time.Second}}, Alerts: []int{80}}
			if a == windows.SlidingBuckets {
				rule.Buckets = testBuckets
			}
			s.rules = rulesOf(t, rule)
			x := tale{t, s}
			s.clock.ms += 10_000*1000 - s.clock.ms%10_000 + 1000
			x.check(a, 7)
			x.expect()
			s.fold(t, nil, counters.Event{Key: a, Ms: s.clock.ms, Count: 3})
			name := a + "/" + a
			x.expect("raised "+name+" 80% used 10", "raised "+name+" 100% used 10", "throttled "+name+" 100% used 10")
			end := fallsBelow(a, s.clock.ms, 10, 10_000)
			if due := ms(x.due(a)); due != end {
				t.Errorf("%s: due in %v, expected %v", a, due, end)
			}
			x.after(end - time.Millisecond)
			x.expect()
			x.after(time.Millisecond)
			left := fmt.Sprint(used(t, s, a))
			want := []string{"released " + name + " 100% used " + left, "cleared " + name + " 100% used " + left}
			if left == "0" {
				want = append(want, "cleared "+name+" 80% used 0")
			}
			x.expect(want...)
			x.after(10 * time.Second)
			s.transitions(t)
		}
	})
}
