package counters_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

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
