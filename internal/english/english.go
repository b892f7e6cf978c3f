// Package english formats numbers, durations and lists for sentences, and finds the known word for a mistyped one
// (nearest.go).
package english

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Number formats n with separators of thousands: 1,000,000.
func Number(n int64) string {
	s := strconv.FormatInt(n, 10)
	digits, sign := strings.CutPrefix(s, "-")
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if sign {
		return "-" + digits
	}
	return digits
}

var units = []struct {
	per  time.Duration
	name string
}{
	{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"},
	{time.Millisecond, "millisecond"},
}

// count returns d as a number of its greatest unit that divides it.
func count(d time.Duration) (n int64, unit string) {
	for _, u := range units {
		if d%u.per == 0 {
			return int64(d / u.per), u.name
		}
	}
	return d.Milliseconds(), "millisecond"
}

// Span formats a duration in its greatest unit that divides it: 90 minutes, 1 day, 500 milliseconds.
func Span(d time.Duration) string {
	if d == 0 {
		return "0 seconds"
	}
	n, unit := count(d)
	if n == 1 {
		return "1 " + unit
	}
	return Number(n) + " " + unit + "s"
}

// PerSpan is Span, but without the number if it is one: minute, 10 seconds.
func PerSpan(d time.Duration) string {
	if n, unit := count(d); n == 1 {
		return unit
	}
	return Span(d)
}

// Plural returns a number of things: 1 key, 12 keys.
func Plural[N int | int64](n N, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// List joins words with commas, and puts `before` before the last one: a, b and c.
func List(words []string, before string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " " + before + " " + words[last]
}

// Ordinal formats a position: 1st, 2nd, 11th.
func Ordinal(n int) string {
	end := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			end = "st"
		case 2:
			end = "nd"
		case 3:
			end = "rd"
		}
	}
	return Number(int64(n)) + end
}
