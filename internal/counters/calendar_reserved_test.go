package counters_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// Units that are still reserved when a new period begins are charged in the new period when they expire. They
// leave when that period ends, not a whole window later.
func TestReservedUnitsLeaveWithTheirPeriod(t *testing.T) {
	for name, window := range map[string]string{
		"calendar":     "{limit: 10, per: month, zone: Europe/Berlin, starts: 15}",
		"fixed-window": "{limit: 10, per: 30d, algorithm: fixed-window}",
		"mixed": "{limit: 10, per: month, zone: Europe/Berlin, starts: 15}, {limit: 100, per: 1s, " +
			"algorithm: sliding-log-zset}",
	} {
		t.Run(name, func(t *testing.T) {
			eachRedis(t, nil, func(t *testing.T, s *store) {
				s.rules = parsed(t, "rules:\n  - {name: budget, match: \"*\", windows: ["+window+"]}")
				ends := (s.clock.ms/(30*86_400_000) + 1) * 30 * 86_400_000
				if c := s.rules.List()[0].Windows[0].Calendar; c.Unit != "" {
					_, ends = c.Period(s.clock.ms)
				}
				s.clock.ms = ends - 5000
				x := tale{t, s}
				x.reserve("a", 6, time.Second, "k")
				_, v := x.reserve("b", 4, 2*time.Second, "k")
				if w := v.Items[0].Windows[0]; !v.Allowed || w.NextFreeMs != 5000 || w.EmptyMs != 5000 {
					t.Errorf("reserved: %+v", w)
				}
				if _, v := x.reserve("c", 1, time.Second, "k"); v.Items[0].RetryAfter != 5*time.Second {
					t.Errorf("denied: %+v", v.Items[0])
				}
				x.after(3 * time.Second)
				if _, v := x.reserve("c", 1, time.Second, "k"); v.Items[0].RetryAfter != 2*time.Second {
					t.Errorf("denied once all have expired: %+v", v.Items[0])
				}
				x.after(2 * time.Second)
				if _, v := x.reserve("c", 10, time.Second, "k"); !v.Allowed {
					t.Errorf("in the next period: %+v", v.Items[0])
				}
			})
		})
	}
}

// Units that are charged before their reservation expires leave the window earlier than was computed. So
// do those of a reservation that was renewed for a shorter time.
func TestACommitEndsAThrottleInTime(t *testing.T) {
	rule := apiRule(func(r *windows.Rule) { r.Alerts, r.Hold = nil, 0 })
	eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
		x := tale{t, s}
		id, v := x.reserve("a", 10, time.Minute, "k")
		if due := x.due("k"); !v.Allowed || due != 70_000 {
			t.Fatalf("%+v, due in %d ms", v, due)
		}
		x.after(time.Second)
		x.settle(lua.Renew, id, 0, 30*time.Second)
		if due := x.due("k"); due != 40_000 {
			t.Errorf("after it was renewed the throttle ends in %d ms", due)
		}
		x.settle(lua.Commit, id, 10, time.Minute)
		if due := x.due("k"); due != 10_000 {
			t.Errorf("after the commit the throttle ends in %d ms", due)
		}
		x.after(10 * time.Second)
		if v := x.check("k", 10); !v.Allowed {
			t.Errorf("%+v", v)
		}
	})
}

// A rule may have only slots, and a penalty.
func TestAPenaltyOfSlots(t *testing.T) {
	rule := &windows.Rule{Name: "slots", Match: "*", Penalty: []time.Duration{time.Minute},
		Windows: []windows.Window{{Limit: 2, Per: 10 * time.Second, InFlight: true}}}
	eachRedis(t, rulesOf(t, rule), func(t *testing.T, s *store) {
		x := tale{t, s}
		id, v := x.reserve("a", 2, 10*time.Second, "k")
		if !v.Allowed || v.Items[0].Windows[0] != (api.WindowState{Limit: 2, Used: 2, EmptyMs: 10_000,
			NextFreeMs: 60_000, WindowKind: api.WindowKind{InFlight: true}}) {
			t.Fatalf("%+v", v)
		}
		x.expect("raised slots/k 100% used 2 f", "throttled slots/k 100% used 2 f")
		x.settle(lua.Commit, id, 0, time.Minute)
		if _, v := x.reserve("b", 1, time.Second, "k"); v.Allowed || v.Items[0].RetryAfter != time.Minute {
			t.Errorf("%+v", v)
		}
		x.after(time.Minute)
		if _, v := x.reserve("c", 1, time.Second, "k"); !v.Allowed {
			t.Errorf("%+v", v)
		}
	})
}

// A reset with the period before is run again, and the first run removes nothing, because the caller could
// end before the second, and units of leases must stay reserved.
func TestAResetOfALeasedKeyIsWholeOrNotAtAll(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		x, ends := monthly(t, s, 10)
		if n := x.leases(time.Minute, 0, reservations.Renewal{Want: 6}); n != 6 {
			t.Fatalf("a lease of %d units", n)
		}
		x.check("k", 2)
		p := s.keys.Partition("k")
		names := []string{s.keys.Counter(p, "calendar", "k")}
		before := lua.Key{Levels: s.keys.Levels(p), Meters: names, Plan: &lua.Plan{
			Meters: []lua.Meter{{Algorithm: lua.Calendar, SpanMs: 1, Windows: []int{1}}},
			Rules: []lua.Rule{{Name: "budget", Algorithm: "month", Windows: []lua.Window{{Ms: 1000, Limit: 10,
				Steps: []int64{100, 10}, ID: 1, FromMs: ends - 2000}}}}}}
		s.clock.ms = ends + 1
		everyScriptSaysThePeriodIsOver(t, s, before)
		had, err := s.serve.Reset(t.Context(), s.rules.Match("k"), "k")
		if n := used(t, s, "k"); !had || err != nil || n != 6 {
			t.Errorf("used %d after a reset, expected the 6 units of the lease; %v", n, err)
		}
	})
}

// everyScriptSaysThePeriodIsOver runs each script that opens counters with a period that is over. The script
// returns the error code, and writes nothing.
func everyScriptSaysThePeriodIsOver(t *testing.T, s *store, over lua.Key) {
	t.Helper()
	ctx, c, now, p := t.Context(), s.redis, lua.Now(s.clock.ms), s.keys.Partition("k")
	levels, due, outbox := s.keys.Levels(p), s.keys.Due(p), s.keys.Outbox(p)
	partition := lua.CheckPartition{Levels: levels, Due: due, Outbox: outbox}
	key := lua.ReservationArgs{Now: now, ID: "r", Partitions: []lua.ReservationPartition{{Levels: levels, Due: due,
		Outbox: outbox, Reservations: s.keys.Reservations(p)}},
		Keys: []lua.ReservationKey{{Holds: s.keys.Holds(p, "k"), Units: 1, Meters: over.Meters, Plan: over.Plan}}}
	state := func() string {
		text := c.Get(ctx, over.Meters[0]).String()
		for _, name := range []string{due, s.keys.Holds(p, "k")} {
			text += fmt.Sprint(c.ZRangeWithScores(ctx, name, 0, -1))
		}
		for _, name := range []string{levels, s.keys.Reservations(p)} {
			text += fmt.Sprint(c.HGetAll(ctx, name))
		}
		return text + fmt.Sprint(c.XLen(ctx, outbox), c.XPending(ctx, s.keys.Events(p), "workers"))
	}
	testkit.Must(t, c.XGroupCreateMkStream(ctx, s.keys.Events(p), "workers", "0").Err())
	id := c.XAdd(ctx, &redis.XAddArgs{Stream: s.keys.Events(p), Values: []any{"key", "k"}}).Val()
	testkit.Must(t, c.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "workers", Consumer: "a",
		Streams: []string{s.keys.Events(p), ">"}}).Err())
	before := state()
	for name, run := range map[string]func() error{
		"check": func() error {
			_, err := lua.NewServer(c).Check(ctx, lua.CheckArgs{Now: now, Partitions: []lua.CheckPartition{partition},
				Plans: []*lua.Plan{over.Plan}, Keys: []lua.CheckKey{{Meters: over.Meters}},
				Calls: [][]lua.CheckItem{{{Cost: 1}}}})
			return err
		},
		"fold": func() error {
			_, err := lua.NewServer(c).Fold(ctx, lua.FoldArgs{Now: now, Group: "workers", RememberMs: 1000,
				Partitions: []lua.FoldPartition{{Events: s.keys.Events(p), Levels: levels, Due: due, Outbox: outbox,
					IDs: s.keys.IDs(p), Sections: []lua.FoldSection{{Plan: over.Plan, Keys: []lua.FoldKey{{
						Meters: over.Meters, Groups: []lua.FoldGroup{{Count: 1, IDs: []string{id}}}}}}}}}})
			return err
		},
		"peek": func() error {
			_, err := lua.NewServer(c).Peek(ctx, now, []lua.Key{over})
			return err
		},
		"sweep": func() error {
			_, _, err := lua.NewServer(c).Sweep(ctx, levels, due, outbox, now,
				[]lua.SweepItem{{Meters: over.Meters, Plan: over.Plan}})
			return err
		},
		"refund": func() error { _, _, err := lua.NewServer(c).Refund(ctx, partition, now, 1, over); return err },
		"reset": func() error {
			_, _, err := lua.NewServer(c).Reset(ctx, partition, now, s.keys.Holds(p, "k"), over, nil, nil)
			return err
		},
		"reserve": func() error { _, err := lua.NewServer(c).Reserve(ctx, key, 1000, "-"); return err },
		"settle":  func() error { _, err := lua.NewServer(c).Settle(ctx, key, lua.Commit, 1000, "-"); return err },
		"lease-units": func() error {
			_, err := lua.NewServer(c).LeaseUnits(ctx, lua.LeaseArgs{ReservationArgs: key, TTLMs: 1000, Want: 1,
				Least: 1})
			return err
		},
	} {
		err := run()
		if ms, ok := lua.IsOutOfPeriod(err); !ok || ms != s.clock.ms {
			t.Errorf("%s: %v", name, err)
		}
		if after := state(); after != before {
			t.Errorf("%s wrote\n%s\nbefore\n%s", name, after, before)
		}
	}
	if _, ok := lua.IsOutOfPeriod(errors.New("PERIOD 1")); ok {
		t.Error("an error that Redis has not answered with is taken for one of a script")
	}
	named := c.Eval(ctx, "return {err = 'ERR a name that a user chose is PERIOD 1'}", nil).Err()
	if _, ok := lua.IsOutOfPeriod(named); ok || named == nil {
		t.Errorf("an error that names what a user chose is taken for one of ours: %v", named)
	}
}
