package counters_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// anchored reports whether a period begins on a date, by the date alone.
func anchored(unit string, starts int, d time.Time) bool {
	onDay := func(day int) bool {
		return d.Day() == day || d.Day() < day && d.AddDate(0, 0, 1).Day() == 1
	}
	switch unit {
	case "week":
		return int(d.Weekday()) == starts%7
	case "month":
		return onDay(starts)
	case "year":
		return int(d.Month()) == starts/100 && onDay(starts%100)
	}
	return true
}

// TestPeriods compares the calendar with a list of all days of ten years. The date of a day says whether a
// period begins on it, and the period begins at the day's midnight by Go's clock.
func TestPeriods(t *testing.T) {
	starts := map[string][]int{"day": {0}, "week": {1, 3, 7}, "month": {1, 15, 29, 30, 31},
		"year": {101, 406, 229, 1231}}
	for _, zone := range []string{"UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"} {
		location, err := time.LoadLocation(zone)
		testkit.Must(t, err)
		for unit, list := range starts {
			for _, start := range list {
				c, from := windows.Calendar{Unit: unit, Zone: zone, Starts: start}, int64(0)
				for d := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC); d.Year() < 2032; d = d.AddDate(0, 0, 1) {
					if !anchored(unit, start, d) {
						continue
					}
					to := time.Date(d.Year(), d.Month(), d.Day(), 0, 0, 0, 0, location).UnixMilli()
					for _, at := range []int64{from, from + 1, (from + to) / 2, to - 1} {
						if a, b := c.Period(at); from > 0 && (a != from || b != to) {
							t.Fatalf("%s at %s: %s to %s, expected %s to %s", c, clockIn(location, at),
								clockIn(location, a), clockIn(location, b), clockIn(location, from),
								clockIn(location, to))
						}
					}
					from = to
				}
			}
		}
	}
}

func clockIn(l *time.Location, ms int64) string {
	return time.UnixMilli(ms).In(l).Format(time.RFC3339Nano)
}

// If the clocks skip midnight, or a whole date, the day begins after the skipped time.
func TestDaysWithoutAMidnight(t *testing.T) {
	for _, c := range []struct{ zone, at, from, to string }{
		{"Africa/Cairo", "2023-04-28T12:00:00+03:00", "2023-04-28T01:00:00+03:00", "2023-04-29T00:00:00+03:00"},
		{"Africa/Cairo", "2023-04-27T23:59:59+02:00", "2023-04-27T00:00:00+02:00", "2023-04-28T01:00:00+03:00"},
		{"America/Sao_Paulo", "2018-11-04T12:00:00-02:00", "2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"},
		{"Pacific/Apia", "2011-12-29T12:00:00-10:00", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		{"Pacific/Apia", "2011-12-31T12:00:00+14:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"},
	} {
		l, err := time.LoadLocation(c.zone)
		testkit.Must(t, err)
		at, err := time.Parse(time.RFC3339, c.at)
		testkit.Must(t, err)
		from, to := windows.Calendar{Unit: "day", Zone: c.zone}.Period(at.UnixMilli())
		if a, b := clockIn(l, from), clockIn(l, to); a != c.from || b != c.to {
			t.Errorf("%s: the day of %s is %s to %s, expected %s to %s", c.zone, c.at, a, b, c.from, c.to)
		}
	}
}

// monthly sets one rule of a month, and the clock just before a month ends.
func (s *store) monthly(limit int) (ends int64) {
	s.t.Helper()
	s.rules = parsed(s.t, fmt.Sprintf(`rules:
  - {name: budget, match: "*", windows: [{limit: %d, per: month, zone: Europe/Berlin, starts: 15}]}`, limit))
	_, ends = s.rules.List()[0].Windows[0].Calendar.Period(s.clock.ms)
	s.clock.ms = ends - 1000
	return ends
}

// A process whose clock is behind or ahead of Redis's clock passes the wrong period. The script returns an
// error, and is run again. No count is lost, and none counts in both periods.
func TestPeriodsByTheClockOfRedis(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		s.monthly(10)
		s.useClock(nil) // Redis's clock, which is ahead of the estimate of a process
		for _, ahead := range []int64{0, 40 * 86_400_000, -40 * 86_400_000, 400 * 86_400_000} {
			s.serve.SetClockAhead(ahead)
			s.store.SetClockAhead(-ahead)
			before := used(t, s, "k")
			if v := s.check("k", 1); !v.Allowed || v.Items[0].Windows[0].Used != before+1 {
				t.Fatalf("%d ms ahead: %+v", ahead, v)
			}
			s.store.SetClockAhead(-ahead)
			now := time.Now().UnixMilli() // testcontainers have this machine's clock
			s.fold(t, nil, counters.Event{Key: "k", Ms: now, Count: 1})
			if n := used(t, s, "k"); n != before+2 {
				t.Fatalf("%d ms ahead: used %d, expected %d", ahead, n, before+2)
			}
		}
	})
}

// A reset with the period before is run again, and the first run removes nothing, because the caller could
// end before the second, and units of leases must stay reserved.
func TestAResetOfALeasedKeyIsWholeOrNotAtAll(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		ends := s.monthly(10)
		if n := s.leases("k", time.Minute, api.LeaseRequest{Want: 6}); n != 6 {
			t.Fatalf("a lease of %d units", n)
		}
		s.check("k", 2)
		p := s.keys.Partition("k")
		names := []string{s.keys.Counter(p, "calendar", "k")}
		before := lua.Key{Levels: s.keys.Levels(p), Meters: names, Plan: &lua.Plan{
			Meters: []lua.Meter{{Algorithm: lua.Calendar, SpanMs: 1, Windows: []int{1}}},
			Rules: []lua.Rule{{Name: "budget", Algorithm: "month", Windows: []lua.Window{{Ms: 1000, Limit: 10,
				Steps: []int64{100, 10}, ID: 1, FromMs: ends - 2000, NextMs: 1000}}}}}}
		s.clock.ms = ends + 1
		everyScriptSaysThePeriodIsOver(t, s, before)
		had := s.reset("k")
		if n := used(t, s, "k"); !had || n != 6 {
			t.Errorf("used %d after a reset, expected the 6 units of the lease", n)
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
			_, err := lua.NewCaller(c).Check(ctx, lua.CheckArgs{Now: now, Partitions: []lua.CheckPartition{partition},
				Plans: []*lua.Plan{over.Plan}, Keys: []lua.CheckKey{{Meters: over.Meters}},
				Calls: [][]lua.CheckItem{{{Cost: 1}}}})
			return err
		},
		"fold": func() error {
			_, err := lua.NewCaller(c).Fold(ctx, lua.FoldArgs{Now: now, Group: "workers", RememberMs: 1000,
				Plans: []*lua.Plan{over.Plan},
				Partitions: []lua.FoldPartition{{Events: s.keys.Events(p), Levels: levels, Due: due, Outbox: outbox,
					IDs: s.keys.IDs(p), Sections: []lua.FoldSection{{Keys: []lua.FoldKey{{
						Meters: over.Meters, Groups: []lua.FoldGroup{{Count: 1, IDs: []string{id}}}}}}}}}})
			return err
		},
		"peek": func() error {
			_, err := lua.NewCaller(c).Peek(ctx, now, []lua.Key{over})
			return err
		},
		"sweep": func() error {
			_, _, err := lua.NewCaller(c).Sweep(ctx, levels, due, outbox, now,
				[]lua.SweepItem{{Meters: over.Meters, Plan: over.Plan}})
			return err
		},
		"refund": func() error { _, _, err := lua.NewCaller(c).Refund(ctx, partition, now, 1, over); return err },
		"reset": func() error {
			_, _, err := lua.NewCaller(c).Reset(ctx, partition, now, s.keys.Holds(p, "k"), over, nil, nil)
			return err
		},
		"reserve": func() error { _, err := lua.NewCaller(c).Reserve(ctx, key, 1000, "-"); return err },
		"settle":  func() error { _, err := lua.NewCaller(c).Settle(ctx, key, lua.Commit, 1000, "-"); return err },
		"lease-units": func() error {
			_, err := lua.NewCaller(c).LeaseUnits(ctx, lua.LeaseArgs{ReservationArgs: key, TTLMs: 1000, Want: 1,
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
