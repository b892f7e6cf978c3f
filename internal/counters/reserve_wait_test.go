package counters_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/windows"
)

// Some reserved units of a key are charged when they expire (a lease that is not renewed), some are free.
func TestReservationsOfAKeyThatEndDifferently(t *testing.T) {
	for _, leasedFirst := range []bool{true, false} {
		rule := windows.Rule{OnExpire: windows.OnExpireFree,
			Windows: []windows.Window{{Limit: 100, Per: 10 * time.Second}}}
		t.Run(fmt.Sprint("leased first: ", leasedFirst), func(t *testing.T) {
			underEachAlgorithm(t, rule, func(t *testing.T, s *store) {
				if !leasedFirst {
					s.holds("r", 20, ms(100), "k")
				}
				if n := s.leases("k", ms(125), api.LeaseRequest{Want: 60}); n != 60 {
					t.Fatalf("a lease of %d units", n)
				}
				if leasedFirst {
					s.holds("r", 20, ms(100), "k")
				}
				// Older processes, which know only one policy per key, must count it as charged.
				levels := s.keys.Levels(s.serve.Partition("k"))
				text, err := s.redis.HGet(t.Context(), levels, "\n\nk").Result()
				if err != nil || !regexp.MustCompile(`^0?80;\d+;\d+;c$`).MatchString(text) {
					t.Errorf("%q, %v", text, err)
				}
				s.clock.ms += 200
				// They are not settled: a caller that checks again and again gets longer and longer waits.
				asked := 0
				for ; s.clock.ms < start+5000; asked++ {
					s.clock.ms += s.check("k", 50).Items[0].RetryAfter.Milliseconds()
				}
				if asked > 15 {
					t.Errorf("denied %d times in 5 s", asked)
				}
			})
		})
	}
}

// With a reservation that is charged when it expires, the wait is exact: a look is denied until the last millisecond of
// the wait, and not in the next. In the first case, sliding-counter returned 13,334 ms. Reservations that were
// cancelled leave marks in the log of their key, which use no units.
func TestTheWaitBesideAReservationIsExact(t *testing.T) {
	const per, limit = 10_000, 20
	seed, cases := rand.Uint64(), 60
	if testing.Short() {
		cases = 12
	}
	rule := windows.Rule{Windows: []windows.Window{{Limit: limit, Per: per * time.Millisecond}}}
	underEachAlgorithm(t, rule, func(t *testing.T, s *store) {
		random := rand.New(rand.NewPCG(seed, 0))
		for n := range cases {
			key := fmt.Sprint("k", n)
			look := func(cost int64) (allowed bool, waitMs int64) {
				v := s.ask(key, cost, api.ModeLook)
				return v.Allowed, v.Items[0].RetryAfter.Milliseconds()
			}
			at, used, reserved, ttl, cost, cancelled := int64(0), int64(3), int64(5), int64(2000), int64(13), 0
			if n > 0 {
				at, used, reserved = random.Int64N(per), 1+random.Int64N(9), 1+random.Int64N(9)
				ttl, cost, cancelled = 100+random.Int64N(2*per), 1+random.Int64N(limit), random.IntN(2)*random.IntN(12)
			}
			s.clock.ms += 3*per - s.clock.ms%per + at
			s.check(key, used)
			for i := range cancelled {
				s.clock.ms += 10
				s.settle(reservations.Cancel, s.holds(fmt.Sprint(key, "x", i), reserved, ms(ttl), key), 0, 0)
			}
			if n%4 == 3 { // all is cancelled: the window is empty when its limit is admitted
				ttl, cost = math.MaxInt32, limit
				if w := s.peek(key).Windows[0]; w.Used == used {
					if _, told := look(cost); w.EmptyMs != told {
						t.Errorf("seed %d, case %d: it is empty in %d ms, to wait for %d", seed, n, w.EmptyMs, told)
					}
				}
			} else {
				s.reserve(key, reserved, ms(ttl), key)
			}
			_, told := look(cost)
			began := s.clock.ms
			for _, after := range []int64{told / 2, told - 1, told} {
				if after < 0 {
					continue
				}
				if end := began + ttl; began+after >= end {
					s.clock.ms = max(s.clock.ms, end)
					s.sweep(t)
				}
				s.clock.ms = began + after
				if allowed, left := look(cost); left != told-after || allowed != (left == 0) {
					t.Errorf("seed %d, case %d (%d ms into the window, %d used, %d reserved for %d ms, %d cancelled, "+
						"a look for %d): to wait for %d ms, and after %d ms for %d more", seed, n, at, used,
						reserved, ttl, cancelled, cost, told, after, left)
				}
			}
		}
	})
}
