package counters_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
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

// monthly gives a store one rule of a month, and returns a tale of it that begins just before a month ends.
func monthly(t *testing.T, s *store, limit int) (x tale, ends int64) {
	t.Helper()
	s.rules = parsed(t, fmt.Sprintf(`rules:
  - {name: budget, match: "*", windows: [{limit: %d, per: month, zone: Europe/Berlin, starts: 15}]}`, limit))
	_, ends = s.rules.List()[0].Windows[0].Calendar.Period(s.clock.ms)
	s.clock.ms = ends - 1000
	return tale{t, s}, ends
}

// A process whose clock is behind or ahead of Redis's clock passes the wrong period. The script returns an
// error, and is run again. No count is lost, and none counts in both periods.
func TestPeriodsByTheClockOfRedis(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		x, _ := monthly(t, s, 10)
		s.useClock(nil) // Redis's clock, which is ahead of the estimate of a process
		for _, ahead := range []int64{0, 40 * 86_400_000, -40 * 86_400_000, 400 * 86_400_000} {
			s.serve.SetClockAhead(ahead)
			s.store.SetClockAhead(-ahead)
			before := used(t, s, "k")
			if v := x.check("k", 1); !v.Allowed || v.Items[0].Windows[0].Used != before+1 {
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

// If the clock of Redis steps back over the end of a month, the period that was begun continues, and
// nothing is admitted twice.
func TestAMonthGoesOnWhereTheClockStepsBack(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		x, ends := monthly(t, s, 10)
		x.check("k", 7)
		s.clock.ms = ends
		if v := x.check("k", 6); !v.Allowed || v.Items[0].Windows[0].Used != 6 {
			t.Fatalf("a new month: %+v", v)
		}
		s.clock.ms = ends - 5000
		v := x.check("k", 5)
		if w := v.Items[0].Windows[0]; v.Allowed || w.Used != 6 || v.Items[0].RetryAfter < 27*24*time.Hour {
			t.Fatalf("after the step: %+v", v)
		}
		if v := x.check("k", 4); !v.Allowed {
			t.Fatalf("after the step: %+v", v)
		}
		s.clock.ms = ends + 1
		if n := used(t, s, "k"); n != 10 {
			t.Fatalf("used %d, expected 10", n)
		}
	})
}

// A process with other time zones, or an older rule, does not end the period of the other processes.
func TestOverlappingPeriodsKeepTheirUnits(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		x, _ := monthly(t, s, 10)
		x.check("k", 7)
		for i, change := range []string{"zone: Europe/London, starts: 15", "zone: UTC, starts: 14",
			"zone: Europe/Berlin, starts: 15"} {
			s.rules = parsed(t, `rules: [{name: budget, match: "*", windows: [{limit: 10, per: month, `+change+`}]}]`)
			if v := x.check("k", 1); !v.Allowed || v.Items[0].Windows[0].Used != 8+int64(i) {
				t.Fatalf("%s: %+v", change, v)
			}
		}
	})
}

// A counter of the calendar with invalid data counts as empty, and the next write replaces it.
func TestCorruptPeriods(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		x, _ := monthly(t, s, 10)
		name := s.keys.Counter(s.keys.Partition("k"), "calendar", "k")
		last, far := s.clock.ms, int64(1)<<52
		for _, text := range []string{"x", "1 2", fmt.Sprintf("%d 300,%d,%d,5", far, far, far+1),
			fmt.Sprintf("%d 300,%d,%d,5", last, last+1, far), fmt.Sprintf("%d 300,0,%d,5", last, far),
			fmt.Sprintf("%d 300,%d,%d,%d", last, last-1, last+1, int64(1)<<60),
			fmt.Sprintf("%d 300,%d,%d,5", last, last, last-1)} {
			testkit.Must(t, s.redis.Set(context.Background(), name, text, 0).Err())
			if v := x.check("k", 1); !v.Allowed || v.Items[0].Windows[0].Used != 1 {
				t.Errorf("%q: %+v", text, v)
			}
		}
		testkit.Must(t, s.redis.Del(context.Background(), name).Err())
		testkit.Must(t, s.redis.LPush(context.Background(), name, "x").Err())
		if v := x.check("k", 1); !v.Allowed {
			t.Errorf("a list: %+v", v)
		}
	})
}
