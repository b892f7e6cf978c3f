package wording

import (
	"fmt"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// Rule describes a rule in one line.
func Rule(r *windows.Rule) string {
	parts := append([]string{limits(r)}, r.Says()...)
	return fmt.Sprintf("%s (%s): %s", r.Name, r.MatchText(), strings.Join(parts, "; "))
}

// limits describes what all windows admit together, and how they are counted.
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
		parts = append(parts, strings.Join(held, ", and "))
		if !r.Shadow {
			parts = append(parts, "takes reservations only, and none while Redis is away")
		}
	}
	return strings.Join(parts, "; ")
}

// Window describes what one window of a rule admits: 100 in any minute.
func Window(r *windows.Rule, w windows.Window) string {
	if w.InFlight {
		return fmt.Sprintf("at most %s at once, a slot that is not given back is free after %s",
			english.Number(w.Limit), english.Span(w.Per))
	}
	if w.Distinct != "" {
		return english.Number(w.Limit) + " " + values(w) + " " + within(r, w)
	}
	return english.Number(w.Limit) + " " + within(r, w)
}

// values describes what counts as a value of a window with distinct, and where else values go.
func values(w windows.Window) string {
	var parts []string
	if words := w.Normalize.String(); words != "" {
		parts = append(parts, "normalized by "+strings.ReplaceAll(words, ",", " and "))
	}
	if !w.Hash.IsZero() {
		parts = append(parts, w.Hash.Says())
	}
	if w.ValueFrom != "" {
		parts = append(parts, fmt.Sprintf("from the entry %q", w.ValueFrom))
	}
	if w.PublishValues > 0 {
		parts = append(parts, fmt.Sprintf("the newest %d go with decisions", w.PublishValues))
	}
	text := fmt.Sprintf("different values of %q", w.Distinct)
	if len(parts) > 0 {
		text += " (" + strings.Join(parts, "; ") + ")"
	}
	return text
}

// within describes the span of a window: in any minute.
func within(r *windows.Rule, w windows.Window) string {
	period := periods(w)
	switch {
	case w.InFlight:
		return "at once, for " + english.Span(w.Per) + " at most"
	case period != "":
		return "in each " + period
	case lua.PromiseOf(r.AlgorithmOf(w)) == lua.OfTheClock:
		return "in each " + english.PerSpan(w.Per) + " of the clock"
	}
	return "in any " + english.PerSpan(w.Per)
}

// algorithm describes what counts a rule's windows. If several algorithms do, it lists those that a rule can name.
func algorithm(r *windows.Rule) string {
	var names []string
	for _, a := range r.Algorithms() {
		switch {
		case !slices.Contains(windows.Algorithms, a):
			continue // it is exact, and a rule cannot choose it
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
	return "by " + english.List(names, "and")
}

func buckets(n int64) string {
	if n == 1 {
		return "1 bucket"
	}
	return english.Number(n) + " buckets"
}
