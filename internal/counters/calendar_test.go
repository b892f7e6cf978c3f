package counters_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/streamtest"
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

// A process whose clock is behind or ahead of Redis's clock passes the wrong period. Each script returns an error then,
// and writes nothing: the process could end before it runs the script again, with the right period. No count is lost,
// and none counts in both periods. A reset leaves the units of leases.
func TestPeriodsByTheClockOfRedis(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		s, refused, id := newStore(t, c, c, c, nil), 0, ""
		s.monthly(1000)
		s.useClock(nil)
		c.AddHook(streamtest.OnCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if !streamtest.IsScript(cmd) {
				return next(ctx, cmd)
			}
			before, err := s.contents(t), next(ctx, cmd)
			if _, over := lua.IsOutOfPeriod(err); over {
				refused++
				if diff := cmp.Diff(before, s.contents(t)); diff != "" {
					t.Errorf("it has written:\n%s", diff)
				}
			}
			return err
		}))
		for round, ahead := range []int64{0, 40 * 86_400_000, -40 * 86_400_000, 400 * 86_400_000} {
			for _, step := range []struct {
				name string
				run  func()
				used int64 // more than before
			}{
				{"check", func() { s.check("k", 1) }, 1},
				{"fold", func() { // testcontainers have this machine's clock
					s.fold(t, nil, counters.Event{Key: "k", Ms: time.Now().UnixMilli(), Count: 1})
				}, 1},
				{"peek", func() { s.peek("k") }, 0},
				{"sweep", func() {
					_, _, err := s.store.Sweep(t.Context(), s.keys.Partition("k"), s.rules, []string{"k"})
					testkit.Must(t, err)
				}, 0},
				{"refund", func() { s.refund("k", 1) }, -1},
				{"reserve", func() { id = s.holds(fmt.Sprint("r", round), 3, time.Hour, "k") }, 3},
				{"settle", func() { s.settle(reservations.Commit, id, 1, 0) }, -2},
				{"lease", func() {
					s.leases("k", time.Hour, api.LeaseRequest{ID: fmt.Sprint("l", round), Want: 6})
				}, 6},
				{"reset", func() { s.reset("k") }, -2},
			} {
				s.serve.SetClockAhead(0)
				before := used(t, s, "k")
				s.serve.SetClockAhead(ahead)
				s.store.SetClockAhead(ahead)
				refused = 0
				step.run()
				if wrong := ahead != 0; wrong != (refused == 1) || refused > 1 {
					t.Errorf("%d ms ahead, %s: %d times the period was over", ahead, step.name, refused)
				}
				s.serve.SetClockAhead(0)
				if n := used(t, s, "k"); n != before+step.used {
					t.Fatalf("%d ms ahead, %s: used %d after %d, want %d more", ahead, step.name, n, before, step.used)
				}
			}
		}
		if _, ok := lua.IsOutOfPeriod(errors.New("PERIOD 1")); ok {
			t.Error("an error that Redis has not answered with is taken for one of a script")
		}
		named := c.Eval(t.Context(), "return {err = 'ERR a name that a user chose is PERIOD 1'}", nil).Err()
		if _, ok := lua.IsOutOfPeriod(named); ok || named == nil {
			t.Errorf("an error that names what a user chose is taken for one of ours: %v", named)
		}
	})
}
