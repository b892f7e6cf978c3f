package wording

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// Rule says what a rule means, in one line. What a rule leaves at its default is said where it
// decides something (on_deny, on_error), and not where it adds nothing (hold, alerts).
func Rule(r *windows.Rule) string {
	parts := []string{limits(r)}
	if len(r.Alerts) > 0 {
		parts = append(parts, "alerts at "+alerts(r.Alerts))
	}
	if r.Hold != windows.DefaultHold && !r.Unlevelled {
		parts = append(parts, hold(r))
	}
	switch {
	case r.Shadow && r.Exclusive:
		parts = append(parts, "a shadow: never denies, and no other rule takes its keys")
	case r.Shadow:
		parts = append(parts, "a shadow: counts beside the rule that decides, and never denies")
	default:
		if len(r.Penalty) > 0 {
			parts = append(parts, penalty(r))
		}
		if charges(r) {
			parts = append(parts, onDeny(r.OnDeny))
		}
		if r.InFlight() > 0 || r.OnExpire == windows.OnExpireFree {
			parts = append(parts, onExpire(r.OnExpire))
		}
		if r.Lease > 0 {
			parts = append(parts, lease(r))
		}
		parts = append(parts, onError(r.OnError))
	}
	return fmt.Sprintf("%s (%s): %s", r.Name, match(r), strings.Join(parts, "; "))
}

func match(r *windows.Rule) string {
	if r.Match == "" {
		return "a tier, which only an override chooses"
	}
	return r.Match
}

// limits says what all windows admit together, and how that is counted.
func limits(r *windows.Rule) string {
	var counted, held []string
	for _, w := range r.Windows {
		if w.InFlight {
			held = append(held, Window(r, w))
		} else {
			counted = append(counted, Window(r, w))
		}
	}
	var parts []string
	if len(counted) > 0 {
		parts = append(parts, strings.Join(counted, ", and ")+", "+algorithm(r))
	}
	if len(held) > 0 {
		parts = append(parts, strings.Join(held, ", and "), "takes reservations only")
	}
	return strings.Join(parts, "; ")
}

// charges tells whether a window counts what was charged, so that the algorithm matters.
func charges(r *windows.Rule) bool {
	for _, w := range r.Windows {
		if !w.InFlight {
			return true
		}
	}
	return false
}

// Window says what one window of a rule admits: 100 in any minute.
func Window(r *windows.Rule, w windows.Window) string {
	if w.InFlight {
		return fmt.Sprintf("at most %s at once, a slot that is not given back is free after %s", Number(w.Limit),
			Span(w.Per))
	}
	if w.Distinct != "" {
		return fmt.Sprintf("%s different values of %q %s", Number(w.Limit), w.Distinct, within(r, w))
	}
	return Number(w.Limit) + " " + within(r, w)
}

// within names the span of a window: in any minute.
func within(r *windows.Rule, w windows.Window) string {
	switch {
	case w.InFlight:
		return "at once, for " + Span(w.Per) + " at most"
	case w.Calendar.Unit != "":
		return "in each " + calendar(w.Calendar)
	case lua.PromiseOf(cmp.Or(w.Algorithm, r.Algorithm)) == lua.OfTheClock:
		return "in each " + perSpan(w.Per) + " of the clock"
	}
	return "in any " + perSpan(w.Per)
}

// calendar names a unit of the calendar: month from the 15th, Berlin time.
func calendar(c windows.Calendar) string {
	text := c.Unit
	if starts := c.StartsText(); starts != "" {
		switch c.Unit {
		case "month":
			text += " from the " + Ordinal(c.Starts)
		case "year":
			text += fmt.Sprintf(" from %s %d", time.Month(c.Starts/100), c.Starts%100)
		default:
			text += " from " + strings.ToUpper(starts[:1]) + starts[1:]
		}
	}
	zone := c.Zone
	if i := strings.LastIndexByte(zone, '/'); i >= 0 && !strings.HasPrefix(zone, "Etc/") {
		zone = strings.ReplaceAll(zone[i+1:], "_", " ") + " time"
	}
	return text + ", " + zone
}

// algorithm says what counts a rule's windows: where they differ, each that is named.
func algorithm(r *windows.Rule) string {
	var names []string
	for _, a := range r.Algorithms() {
		switch {
		case a == lua.Calendar, a == lua.Distinct:
			continue // that is exact, and no choice
		case a == windows.SlidingBuckets:
			a = fmt.Sprintf("%s (%s a window)", a, buckets(r.Buckets))
		case lua.PromiseOf(a) == lua.Estimate:
			a += " (an estimate)"
		}
		names = append(names, a)
	}
	switch {
	case len(names) == 0 && slices.Contains(r.Algorithms(), lua.Distinct):
		return "counted exactly"
	case len(names) == 0:
		return "counted in one integer"
	}
	return "by " + list(names, "and")
}

func buckets(n int64) string {
	if n == 1 {
		return "1 bucket"
	}
	return Number(n) + " buckets"
}

func alerts(percentages []int) string {
	words := make([]string, len(percentages))
	for i, p := range percentages {
		words[i] = strconv.Itoa(p) + "%"
	}
	return list(words, "and")
}

func hold(r *windows.Rule) string {
	if r.Hold == 0 {
		return "a throttle or alert ends as soon as the count allows"
	}
	return "a throttle or alert lasts at least " + Span(r.Hold)
}

func penalty(r *windows.Rule) string {
	text := "a throttle lasts at least " + Span(r.Penalty[0])
	for i, d := range r.Penalty[1:] {
		if i == 0 {
			text += ", the next one within " + Span(r.Forget) + " " + Span(d)
		} else {
			text += ", then " + Span(d)
		}
	}
	return text
}

func onDeny(what windows.OnDeny) string {
	if what == windows.OnDenyCharge {
		return "what is denied counts too"
	}
	return "what is denied does not count"
}

func onExpire(what windows.OnExpire) string {
	if what == windows.OnExpireFree {
		return "an unsettled reservation costs nothing"
	}
	return "an unsettled reservation is charged"
}

func lease(r *windows.Rule) string {
	if r.Lease == 0 {
		return "each check asks Redis"
	}
	return "keys that are asked for often are answered from memory, by leases of " + Span(r.Lease)
}

func onError(what windows.OnError) string {
	switch what {
	case windows.OnErrorDeny:
		return "denied while Redis is away"
	case windows.OnErrorLocal:
		return "counted by each process while Redis is away"
	}
	return "allowed while Redis is away"
}
