package counters_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// Each reservation says what happens to its units when it expires. Some units of a key are charged (a lease that is not
// renewed), some are free.
func TestReservationsOfAKeyThatEndDifferently(t *testing.T) {
	const ms = time.Millisecond
	for _, a := range windows.Algorithms {
		for _, leasedFirst := range []bool{true, false} {
			rule := &windows.Rule{Name: "a", Match: "*", Algorithm: a, OnExpire: windows.OnExpireFree,
				Windows: []windows.Window{{Limit: 100, Per: 10 * time.Second}}}
			t.Run(fmt.Sprint(a, " leased first: ", leasedFirst), func(t *testing.T) {
				eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
					plan, ctx := s.rules.Match("k"), t.Context()
					ask := func(cost int64) counters.Verdict {
						v, err := s.serve.Check(ctx, []counters.Request{{Plan: plan, Key: "k", Cost: cost}})
						testkit.Must(t, err)
						return v
					}
					requests := []counters.Request{{Plan: plan, Key: "k", Cost: 20}}
					reserve := func() {
						got, err := s.held.Reserve(ctx, s.held.ID("r", requests), 100*ms, "-", requests)
						if err != nil || !got.Allowed {
							t.Fatalf("%+v, %v", got, err)
						}
					}
					if !leasedFirst {
						reserve()
					}
					one := reservations.Lease{ID: s.held.ID("a", requests), Key: "k", TTL: 125 * ms}
					got, err := s.held.RenewLease(ctx, plan, one, reservations.Renewal{Want: 60})
					if err != nil || got.Units != 60 {
						t.Fatalf("%+v, %v", got, err)
					}
					if leasedFirst {
						reserve()
					}
					if v := ask(30); v.Allowed || v.Items[0].RetryAfter != 100*ms {
						t.Errorf("%+v, expected to wait for 100 ms", v)
					}
					// Older processes, which know only one policy per key, must count it as charged.
					levels := s.keys.Levels(s.serve.Partition("k"))
					text, err := s.redis.HGet(ctx, levels, "\n\nk").Result()
					if err != nil || !regexp.MustCompile(`^0?80;\d+;\d+;c$`).MatchString(text) {
						t.Errorf("%q, %v", text, err)
					}
					s.clock.ms += 200
					if v := ask(50); v.Allowed {
						t.Errorf("50 of 100 though 60 were of a lease: %+v", v)
					}
					// They are not settled: a caller that checks again and again gets longer and longer waits.
					asked := 0
					for ; s.clock.ms < start+5000; asked++ {
						s.clock.ms += ask(50).Items[0].RetryAfter.Milliseconds()
					}
					if asked > 15 {
						t.Errorf("denied %d times in 5 s", asked)
					}
				})
			})
		}
	}
}

// After a renewal of a lease, other reserved units of its key are still free when they expire.
func TestARenewalBesideUnitsThatAreFreeAtTheirEnd(t *testing.T) {
	rule := &windows.Rule{Name: "a", Match: "*", OnExpire: windows.OnExpireFree,
		Windows: []windows.Window{{Limit: 100, Per: 10 * time.Second}}}
	eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
		plan, ctx := s.rules.Match("k"), t.Context()
		requests := []counters.Request{{Plan: plan, Key: "k", Cost: 20}}
		one := reservations.Lease{ID: s.held.ID("a", requests), Key: "k", TTL: time.Second}
		v, err := s.serve.Check(ctx, []counters.Request{{Plan: plan, Key: "k", Cost: 1}})
		if err != nil || !v.Allowed {
			t.Fatalf("%+v, %v", v, err)
		}
		for used := range int64(4) {
			ask := reservations.Renewal{Used: used, Keep: one.Units - used, Want: 10}
			got, err := s.held.RenewLease(ctx, plan, one, ask)
			if err != nil || got.Units != 10 {
				t.Fatalf("%+v, %v", got, err)
			}
			one.Units = got.Units
			if used > 0 {
				continue
			}
			_, err = s.held.Reserve(ctx, s.held.ID("r", requests), 900*time.Millisecond, "-", requests)
			testkit.Must(t, err)
		}
		v, err = s.serve.Check(ctx, []counters.Request{{Plan: plan, Key: "k", Cost: 80}})
		if err != nil || v.Allowed || v.Items[0].RetryAfter != 900*time.Millisecond {
			t.Errorf("%+v, %v; expected to wait for 900 ms", v, err)
		}
	})
}

// If a reservation whose units are then free ends before enough charged units leave, the wait lasts until that
// reservation ends.
func TestTheWaitForUnitsThatAreFreeAtTheirEnd(t *testing.T) {
	rule := windows.Rule{OnExpire: windows.OnExpireFree, Windows: []windows.Window{{Limit: 10, Per: 10 * time.Second}}}
	underEachAlgorithm(t, rule, func(t *testing.T, s *store) {
		plan, ctx := s.rules.Match("k"), t.Context()
		ask := func(cost int64) windows.KeyState {
			v, err := s.serve.Check(ctx, []counters.Request{{Plan: plan, Key: "k", Cost: cost}})
			testkit.Must(t, err)
			return v.Items[0]
		}
		s.clock.ms -= s.clock.ms % 10_000
		ask(6)
		s.clock.ms += 1000
		requests := []counters.Request{{Plan: plan, Key: "k", Cost: 4}}
		id := s.held.ID("r", requests)
		_, err := s.held.Reserve(ctx, id, 400*time.Millisecond, "-", requests)
		testkit.Must(t, err)
		for _, cost := range []int64{1, 4} {
			if got := ask(cost).RetryAfter; got != 400*time.Millisecond {
				t.Errorf("%d: to wait for %v, expected 400 ms", cost, got)
			}
		}
		if got := ask(5).RetryAfter; got <= time.Second {
			t.Errorf("5: to wait for %v, though 6 are charged", got)
		}
		s.clock.ms += 400
		if got := ask(4); got.RetryAfter != 0 {
			t.Errorf("%+v once it has ended", got)
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
		ctx, random := t.Context(), rand.New(rand.NewPCG(seed, 0))
		for n := range cases {
			key := fmt.Sprint("k", n)
			plan := s.rules.Match(key)
			check := func(cost int64, mode api.Mode) (allowed bool, waitMs int64) {
				v, err := s.serve.Check(ctx, []counters.Request{{Plan: plan, Key: key, Cost: cost, Mode: mode}})
				testkit.Must(t, err)
				return v.Allowed, v.Items[0].RetryAfter.Milliseconds()
			}
			at, used, reserved, ttl, cost := int64(0), int64(3), int64(5), int64(2000), int64(13)
			if n > 0 {
				at, used, reserved = random.Int64N(per), 1+random.Int64N(9), 1+random.Int64N(9)
				ttl, cost = 100+random.Int64N(2*per), 1+random.Int64N(20)
			}
			s.clock.ms += 3*per - s.clock.ms%per + at
			check(used, api.ModeTake)
			requests := []counters.Request{{Plan: plan, Key: key, Cost: reserved}}
			id := s.held.ID(key, requests)
			_, err := s.held.Reserve(ctx, id, time.Duration(ttl)*time.Millisecond, "-", requests)
			testkit.Must(t, err)
			_, told := check(cost, api.ModeLook)
			began, p := s.clock.ms, s.serve.Partition(key)
			for _, after := range []int64{told - 1, told} {
				if after < 0 {
					continue
				}
				if end := began + ttl; began+after >= end {
					s.clock.ms = max(s.clock.ms, end)
					fields, err := s.serve.DueRecords(ctx, p, s.clock.ms, 1000)
					testkit.Must(t, err)
					_, _, err = s.held.Sweep(ctx, p, s.rules, fields)
					testkit.Must(t, err)
				}
				s.clock.ms = began + after
				if allowed, left := check(cost, api.ModeLook); left != told-after || allowed != (left == 0) {
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
		plan, ctx, ids := s.rules.Match("k"), t.Context(), 0
		ask := func(cost int64, mode api.Mode) counters.Verdict {
			v, err := s.serve.Check(ctx, []counters.Request{{Plan: plan, Key: "k", Cost: cost, Mode: mode}})
			testkit.Must(t, err)
			return v
		}
		reserve := func(units int64) (id string) {
			ids++
			requests := []counters.Request{{Plan: plan, Key: "k", Cost: units}}
			id = s.held.ID(fmt.Sprint("r", ids), requests)
			got, err := s.held.Reserve(ctx, id, 30*time.Second, "-", requests)
			if err != nil || !got.Allowed {
				t.Fatalf("%+v, %v", got, err)
			}
			return id
		}
		settle := func(id string, op lua.SettleOp) {
			_, err := s.held.Settle(ctx, s.rules, id, []int{s.serve.Partition("k")}, op, time.Minute, nil, "-")
			testkit.Must(t, err)
		}
		begin := func() {
			s.clock.ms += 10_000 - s.clock.ms%1000
			if !ask(1, api.ModeTake).Allowed {
				t.Fatal("there is room")
			}
		}
		wait := func(what string, cost int64) {
			t.Helper()
			told, began := ask(cost, api.ModeLook).Items[0].RetryAfter.Milliseconds(), s.clock.ms
			for _, after := range []int64{told / 2, told - 1, told} {
				s.clock.ms = began + after
				if room := ask(cost, api.ModeLook).Allowed; room != (after == told) {
					t.Errorf("%s: to wait for %d ms, after %d ms there is room: %v", what, told, after, room)
				}
			}
		}
		begin()
		s.clock.ms += 850
		id := reserve(9)
		wait("beside a reservation", 1)
		settle(id, lua.Cancel)

		begin()
		for range 50 {
			s.clock.ms += 10
			settle(reserve(5), lua.Cancel)
		}
		s.clock.ms += 350
		st, err := s.Peek(ctx, plan, "k")
		if before := s.clock.ms; err != nil || st.Windows[0].Used == 1 {
			wait("after many", 10)
			if empty := s.clock.ms - before; st.Windows[0].EmptyMs != empty {
				t.Errorf("all is free after %d ms, told %d, %v", empty, st.Windows[0].EmptyMs, err)
			}
		}
	})
}
