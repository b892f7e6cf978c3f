package windows

import (
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/lua"
)

// Calendar says when the periods of a window begin and end. The zero value is for a window that
// slides.
type Calendar struct {
	Unit   string // day, week, month or year
	Zone   string // IANA name of the time zone
	Starts int    // for month, the day; for week, 1 (Monday) to 7; for year, month*100+day; for day, 0
}

// periodAlgorithm counts the windows of the calendar.
const periodAlgorithm = lua.Calendar

// units are the units of the calendar, and how long each lasts at least and at most.
var units = []struct {
	name        string
	least, most time.Duration
	starts      int // the default of Starts
}{
	{"day", 22 * time.Hour, 26 * time.Hour, 0},
	{"week", 7*day - 3*time.Hour, 7*day + 3*time.Hour, 1},
	{"month", 27 * day, 32 * day, 1},
	{"year", 364 * day, 367 * day, 101},
}

var weekdays = []string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}

// Calendars are the names that `per` can have instead of a span.
func Calendars() []string {
	names := make([]string, len(units))
	for i, u := range units {
		names[i] = u.name
	}
	return names
}

// unit returns the place of the calendar's unit in units, from 1; 0 if it has none.
func (c Calendar) unit() int { return slices.Index(Calendars(), c.Unit) + 1 }

// periodID returns the id of the window for calendar.lua; 0 if the window slides.
func (w Window) periodID() int64 {
	c := w.Calendar
	if c.Unit == "" {
		return 0
	}
	return int64(c.unit())<<32 + int64(crc32.ChecksumIEEE([]byte(c.String())))
}

// setPer sets the span of the window from texts: a duration, or a unit of the calendar with its
// zone and starts. If it returns an error, it also returns the name of the wrong field.
func (w *Window) setPer(per, zone, starts string) (field string, err error) {
	i := slices.Index(Calendars(), per)
	if i < 0 {
		switch w.Per, err = ParseDuration(per); {
		case err != nil:
			return "per", fmt.Errorf("%w; or %s", err, strings.Join(Calendars(), ", "))
		case zone != "":
			return "zone", errors.New("no zone, as per is no unit of the calendar")
		case starts != "":
			return "starts", errors.New("no starts, as per is no unit of the calendar")
		}
		return "", nil
	}
	u := units[i]
	w.Per, w.Calendar = u.most, Calendar{Unit: u.name, Zone: zone, Starts: u.starts}
	if zone == "" {
		w.Calendar.Zone = "UTC"
	} else if _, err := location(zone); err != nil {
		return "zone", errors.New("the name of a time zone, as Europe/Berlin")
	}
	if starts == "" {
		return "", nil
	}
	if w.Calendar.Starts, err = parseStarts(u.name, starts); err != nil {
		return "starts", err
	}
	return "", nil
}

// CalendarWindow returns a window of the calendar: of a day, week, month or year, in the form of a rules file.
func CalendarWindow(limit int64, unit, zone, starts string) (Window, error) {
	w := Window{Limit: limit}
	if field, err := w.setPer(unit, zone, starts); err != nil {
		value := map[string]string{"per": unit, "zone": zone, "starts": starts}[field]
		return w, fmt.Errorf("%s %q: want %w", field, value, err)
	}
	return w, nil
}

// parseStarts reads when the periods of a unit start.
func parseStarts(unit, text string) (int, error) {
	switch unit {
	case "week":
		if i := slices.IndexFunc(weekdays, func(d string) bool { return d == text || d[:3] == text }); i >= 0 {
			return i + 1, nil
		}
		return 0, errors.New("a day of the week, as monday or mon")
	case "month":
		if n, err := strconv.Atoi(text); err == nil && n >= 1 && n <= 31 && strconv.Itoa(n) == text {
			return n, nil
		}
		return 0, errors.New("a day of the month from 1 to 31, on its last where it has fewer")
	case "year":
		// 2000 has a 29 February.
		if t, err := time.Parse("2006-01-02", "2000-"+text); err == nil {
			return int(t.Month())*100 + t.Day(), nil
		}
		return 0, errors.New("a month and a day, as 04-01")
	}
	return 0, errors.New("no starts, as a day starts at midnight")
}

// StartsText returns Starts in the form of a rules file; "" if it is the default of the unit.
func (c Calendar) StartsText() string {
	switch {
	case c.Unit == "" || c.Starts == units[c.unit()-1].starts:
		return ""
	case c.Unit == "week":
		return weekdays[c.Starts-1]
	case c.Unit == "year":
		return fmt.Sprintf("%02d-%02d", c.Starts/100, c.Starts%100)
	}
	return strconv.Itoa(c.Starts)
}

// String returns the unit, with zone and starts if they are not UTC and the default of the unit.
func (c Calendar) String() string {
	text := c.Unit
	if c.Zone != "UTC" || c.StartsText() != "" {
		text += " " + c.Zone
	}
	if starts := c.StartsText(); starts != "" {
		text += " " + starts
	}
	return text
}

var locations sync.Map // name → *time.Location

// location returns a time zone by its IANA name. It does not accept Local, the machine's zone.
func location(name string) (*time.Location, error) {
	if l, ok := locations.Load(name); ok {
		return l.(*time.Location), nil
	}
	if name == "" || name == "Local" {
		return nil, fmt.Errorf("no time zone %q", name)
	}
	l, err := time.LoadLocation(name)
	if err == nil {
		locations.Store(name, l)
	}
	return l, err
}

// Period returns the period that contains a moment, from its first ms to the first ms after it, in ms since 1970.
func (c Calendar) Period(ms int64) (from, to int64) {
	l, err := location(c.Zone)
	if err != nil {
		l = time.UTC // Windows are validated before they count
	}
	y, m, d := time.UnixMilli(ms).In(l).Date()
	n := 0 // how many units after the date the period begins
	from = c.begin(y, m, d, n, l)
	for from > ms {
		n--
		from = c.begin(y, m, d, n, l)
	}
	for {
		n++
		if to = c.begin(y, m, d, n, l); to > ms {
			return from, to
		}
		from = to
	}
}

// begin returns when the period begins whose start is in the same calendar unit as a date, or in the
// unit n units later. With n = 0, the date can be before that start.
func (c Calendar) begin(y int, m time.Month, d, n int, l *time.Location) int64 {
	switch c.Unit {
	case "week":
		weekday := (int(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Weekday())+6)%7 + 1 // Monday is 1
		return startOfDay(y, m, d-weekday+c.Starts+7*n, l)
	case "month":
		y, m, _ = time.Date(y, m+time.Month(n), 1, 0, 0, 0, 0, time.UTC).Date()
		return startOfDay(y, m, min(c.Starts, daysIn(y, m)), l)
	case "year":
		y, m = y+n, time.Month(c.Starts/100)
		return startOfDay(y, m, min(c.Starts%100, daysIn(y, m)), l)
	}
	return startOfDay(y, m, d+n, l)
}

func daysIn(y int, m time.Month) int { return time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC).Day() }

// startOfDay returns the first ms of a date. If clocks skip midnight, or the whole date, it is the
// first ms after the skipped time.
func startOfDay(y int, m time.Month, d int, l *time.Location) int64 {
	t := time.Date(y, m, d, 0, 0, 0, 0, l)
	date := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	reached := func(t time.Time) bool {
		y, m, d := t.Date()
		return !time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Before(date)
	}
	if reached(t) && !reached(t.Add(-time.Millisecond)) {
		return t.UnixMilli()
	}
	low, high := t.Add(-26*time.Hour).UnixMilli(), t.Add(26*time.Hour).UnixMilli()
	for high-low > 1 {
		if middle := (low + high) / 2; reached(time.UnixMilli(middle).In(l)) {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

// inPeriods reports whether the window counts in periods that begin at a date, and does not slide.
func (w Window) inPeriods() bool { return w.Calendar.Unit != "" }

// period returns the function that returns the period of a moment (Calendar.Period); nil if the window slides.
func (w Window) period() func(ms int64) (from, to int64) {
	if !w.inPeriods() {
		return nil
	}
	return w.Calendar.Period
}

// setPeriods makes the periods begin when those of o begin, a window of the same span.
func (w *Window) setPeriods(o Window) { w.Calendar = o.Calendar }

// SamePeriods reports whether the periods of two windows begin at the same moments, or both windows have no periods.
func (w Window) SamePeriods(o Window) bool { return w.Calendar == o.Calendar }

// sameSpan reports whether two windows last equally long.
func (w Window) sameSpan(o Window) bool {
	return w.Calendar.Unit == o.Calendar.Unit && (w.inPeriods() || w.Per == o.Per)
}

// zoneText returns a space and the zone in which the window's periods begin; empty for UTC, and if the window slides.
func (w Window) zoneText() string {
	if !w.inPeriods() || w.Calendar.Zone == "UTC" {
		return ""
	}
	return " " + w.Calendar.Zone
}

// lengthMs returns how long the window lasts in ms. For a window of the calendar it is the length of the period that
// contains nowMs.
func (w Window) lengthMs(nowMs int64) int64 {
	if !w.inPeriods() {
		return w.Per.Milliseconds()
	}
	from, to := w.Calendar.Period(nowMs)
	return to - from
}

// overlaps reports whether two windows can last equally long. A decision identifies its window by its length.
func (w Window) overlaps(o Window) bool {
	bounds := func(w Window) (least, most time.Duration) {
		if i := w.Calendar.unit(); i > 0 {
			return units[i-1].least, units[i-1].most
		}
		return w.Per, w.Per
	}
	least, most := bounds(w)
	otherLeast, otherMost := bounds(o)
	return least <= otherMost && otherLeast <= most
}

// PerFields returns the window's span, and the zone and the start of its periods, in the form of a rules file.
func (w Window) PerFields() (per, zone, starts string) {
	return w.PerText(), w.Calendar.Zone, w.Calendar.StartsText()
}

// PerText returns the window's span in the form of a rules file.
func (w Window) PerText() string {
	if w.Calendar.Unit != "" {
		return w.Calendar.Unit
	}
	return inDays(w.Per)
}
