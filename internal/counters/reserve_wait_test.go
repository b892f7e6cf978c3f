package counters_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// Each reservation says what happens to its units when it expires. Some units of a key are charged (a lease that is not
// renewed), some are free.
func TestReservationsOfAKeyThatEndDifferently(t *testing.T) {
	for _, leasedFirst := range []bool{true, false} {
		rule := windows.Rule{OnExpire: windows.OnExpireFree,
			Windows: []windows.Window{{Limit: 100, Per: 10 * time.Second}}}
		t.Run(fmt.Sprint("leased first: ", leasedFirst), func(t *testing.T) {
			underEachAlgorithm(t, rule, func(t *testing.T, s *store) {
				x := tale{t, s}
				if !leasedFirst {
					x.holds("r", 20, ms(100), "k")
				}
				if n := x.leases(ms(125), 0, reservations.Renewal{Want: 60}); n != 60 {
					t.Fatalf("a lease of %d units", n)
				}
				if leasedFirst {
					x.holds("r", 20, ms(100), "k")
				}
				if v := x.check("k", 30); v.Allowed || v.Items[0].RetryAfter != ms(100) {
					t.Errorf("%+v, expected to wait for 100 ms", v)
				}
				// Older processes, which know only one policy per key, must count it as charged.
				levels := s.keys.Levels(s.serve.Partition("k"))
				text, err := s.redis.HGet(t.Context(), levels, "\n\nk").Result()
				if err != nil || !regexp.MustCompile(`^0?80;\d+;\d+;c$`).MatchString(text) {
					t.Errorf("%q, %v", text, err)
				}
				s.clock.ms += 200
				if v := x.check("k", 50); v.Allowed {
					t.Errorf("50 of 100 though 60 were of a lease: %+v", v)
				}
				// They are not settled: a caller that checks again and again gets longer and longer waits.
				asked := 0
				for ; s.clock.ms < start+5000; asked++ {
					s.clock.ms += x.check("k", 50).Items[0].RetryAfter.Milliseconds()
				}
				if asked > 15 {
					t.Errorf("denied %d times in 5 s", asked)
				}
			})
		})
	}
}

// After a renewal of a lease, other reserved units of its key are still free when they expire.
func TestARenewalBesideUnitsThatAreFreeAtTheirEnd(t *testing.T) {
	rule := &windows.Rule{Name: "a", Match: "*", OnExpire: windows.OnExpireFree,
		Windows: []windows.Window{{Limit: 100, Per: 10 * time.Second}}}
	eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
		x, had := tale{t, s}, int64(0)
		x.check("k", 1)
		for used := range int64(4) {
			had = x.leases(time.Second, had, reservations.Renewal{Used: used, Keep: had - used, Want: 10})
			if had != 10 {
				t.Fatalf("a lease of %d units", had)
			}
			if used == 0 {
				x.holds("r", 20, ms(900), "k")
			}
		}
		if v := x.check("k", 80); v.Allowed || v.Items[0].RetryAfter != ms(900) {
			t.Errorf("%+v; expected to wait for 900 ms", v)
		}
	})
}

// If a reservation whose units are then free ends before enough charged units leave, the wait lasts until that
// reservation ends.
func TestTheWaitForUnitsThatAreFreeAtTheirEnd(t *testing.T) {
	rule := windows.Rule{OnExpire: windows.OnExpireFree, Windows: []windows.Window{{Limit: 10, Per: 10 * time.Second}}}
	underEachAlgorithm(t, rule, func(t *testing.T, s *store) {
		x := tale{t, s}
		s.clock.ms -= s.clock.ms % 10_000
		x.check("k", 6)
		s.clock.ms += 1000
		x.holds("r", 4, ms(400), "k")
		for _, cost := range []int64{1, 4} {
			if got := x.check("k", cost).Items[0].RetryAfter; got != ms(400) {
				t.Errorf("%d: to wait for %v, expected 400 ms", cost, got)
			}
		}
		if got := x.check("k", 5).Items[0].RetryAfter; got <= time.Second {
			t.Errorf("5: to wait for %v, though 6 are charged", got)
		}
		s.clock.ms += 400
		if v := x.check("k", 4); !v.Allowed {
			t.Errorf("%+v once it has ended", v)
		}
	})
}

// With a reservation that is charged when it expires, the wait is exact: a look is denied in the last millisecond of
// the wait, and not in the next. In the first case, sliding-counter returned 13,334 ms.
func TestTheWaitBesideAReservationIsExact(t *testing.T) {
	const per = 10_000
	seed, cases := rand.Uint64(), 60
	if testing.Short() {
		cases = 12
	}
	rule := windows.Rule{Windows: []windows.Window{{Limit: 20, Per: per * time.Millisecond}}}
	underEachAlgorithm(t, rule, func(t *testing.T, s *store) {
		x, random := tale{t, s}, rand.New(rand.NewPCG(seed, 0))
		for n := range cases {
			key := fmt.Sprint("k", n)
			look := func(cost int64) (allowed bool, waitMs int64) {
				v := x.ask(key, cost, api.ModeLook)
				return v.Allowed, v.Items[0].RetryAfter.Milliseconds()
			}
			at, used, reserved, ttl, cost := int64(0), int64(3), int64(5), int64(2000), int64(13)
			if n > 0 {
				at, used, reserved = random.Int64N(per), 1+random.Int64N(9), 1+random.Int64N(9)
				ttl, cost = 100+random.Int64N(2*per), 1+random.Int64N(20)
			}
			s.clock.ms += 3*per - s.clock.ms%per + at
			x.check(key, used)
			x.reserve(key, reserved, ms(ttl), key)
			_, told := look(cost)
			began := s.clock.ms
			for _, after := range []int64{told - 1, told} {
				if after < 0 {
					continue
				}
				if end := began + ttl; began+after >= end {
					s.clock.ms = max(s.clock.ms, end)
					s.sweep(t)
				}
				s.clock.ms = began + after
				if allowed, left := look(cost); left != told-after || allowed != (left == 0) {
					t.Errorf("seed %d, case %d (%d ms into the window, %d used, %d reserved for %d ms, "+
						"a look for %d): to wait for %d ms, and after %d ms for %d more", seed, n, at, used,
						reserved, ttl, cost, told, after, left)
				}
			}
		}
	})
}

// A reservation leaves a mark in the log of its key, which uses no units. The wait is until there is room.
func TestWaitsBesideReservations(t *testing.T) {
	rule := windows.Rule{Windows: []windows.Window{{Limit: 10, Per: time.Second}}}
	underEachAlgorithm(t, rule, func(t *testing.T, s *store) {
		x, ids := tale{t, s}, 0
		reserve := func(units int64) string {
			ids++
			return x.holds(fmt.Sprint("r", ids), units, 30*time.Second, "k")
		}
		begin := func() {
			s.clock.ms += 10_000 - s.clock.ms%1000
			if !x.check("k", 1).Allowed {
				t.Fatal("there is room")
			}
		}
		wait := func(what string, cost int64) {
			t.Helper()
			told, began := x.ask("k", cost, api.ModeLook).Items[0].RetryAfter.Milliseconds(), s.clock.ms
			for _, after := range []int64{told / 2, told - 1, told} {
				s.clock.ms = began + after
				if room := x.ask("k", cost, api.ModeLook).Allowed; room != (after == told) {
					t.Errorf("%s: to wait for %d ms, after %d ms there is room: %v", what, told, after, room)
				}
			}
		}
		begin()
		s.clock.ms += 850
		id := reserve(9)
		wait("beside a reservation", 1)
		x.settle(lua.Cancel, id, 0, 0)

		begin()
		for range 50 {
			s.clock.ms += 10
			x.settle(lua.Cancel, reserve(5), 0, 0)
		}
		s.clock.ms += 350
		st, err := s.Peek(t.Context(), s.rules.Match("k"), "k")
		if before := s.clock.ms; err != nil || st.Windows[0].Used == 1 {
			wait("after many", 10)
			if empty := s.clock.ms - before; st.Windows[0].EmptyMs != empty {
				t.Errorf("all is free after %d ms, told %d, %v", empty, st.Windows[0].EmptyMs, err)
			}
		}
	})
}
