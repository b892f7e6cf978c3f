package windows

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/streamcounter/streamcounter/api"
)

// fault is one error in a rule. NewRules and Parse each report its place in a
// different way.
type fault struct {
	at    string // the field, as in windows[1].per
	first string // the earlier field that it collides with, if it does
	msg   string
}

func faultf(at, format string, args ...any) *fault {
	return &fault{at: at, msg: fmt.Sprintf(format, args...)}
}

var nameForm = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// nameWords describes nameForm.
const nameWords = "1 to 64 of a-z, 0-9 and -"

// CheckName returns an error if no rule can have this name.
func CheckName(name string) error {
	if !nameForm.MatchString(name) {
		return errors.New("expected the name of a rule, " + nameWords)
	}
	return nil
}

// validate returns the first fault of the rule, nil if there is none.
func (r *Rule) validate() *fault {
	switch {
	case !nameForm.MatchString(r.Name):
		return faultf("name", "name %q: want %s", r.Name, nameWords)
	case r.Name == nameOfBlocks:
		return faultf("name", "name %q: decisions of blocks have this name; want another", r.Name)
	case strings.ContainsFunc(r.Match, func(c rune) bool { return c == utf8.RuneError || api.Unprintable(c) }):
		return faultf("match", "match %q: want UTF-8 without control characters; no key has others", r.Match)
	case (len(r.Match)-len(strings.TrimRight(r.Match, `\`)))%2 == 1:
		return faultf("match", `match %s: want a character after the last \; \\ is the backslash itself`, r.Match)
	}
	if err := CheckAlgorithm(r.Algorithm); err != nil {
		return faultf("algorithm", "%v", err)
	}
	if f := r.validateWindows(); f != nil {
		return f
	}
	for _, o := range options {
		if o.validate == nil {
			continue
		}
		if f := o.validate(r); f != nil {
			return f
		}
	}
	return nil
}

func (r *Rule) validateWindows() *fault {
	if len(r.Windows) == 0 {
		return faultf("windows", "windows is an empty list: want 1 to %d, as [{limit: 100, per: 1m}]", MaxWindows)
	}
	if len(r.Windows) > MaxWindows {
		return faultf(fmt.Sprintf("windows[%d]", MaxWindows), "%d windows: want at most %d", len(r.Windows), MaxWindows)
	}
	for i, w := range r.Windows {
		limit, field, longest := fmt.Sprintf("windows[%d].limit", i), "per", MaxWindow
		if w.InFlight {
			field, longest = "in_flight", MaxReservation
		}
		per := fmt.Sprintf("windows[%d].%s", i, field)
		switch {
		case w.Limit < 1 || w.Limit > MaxLimit:
			return faultf(limit, "limit %d: want a whole number from 1 to %d", w.Limit, MaxLimit)
		case !w.inPeriods() && (w.Per < MinWindow || w.Per > longest || w.Per%time.Millisecond != 0):
			return faultf(per, "%s %s: want %s to %s in whole milliseconds", field, inDays(w.Per), inDays(MinWindow),
				inDays(longest))
		}
		if f := r.validateAlgorithm(i); f != nil {
			return f
		}
		if f := r.validateDistinct(i); f != nil {
			return f
		}
		if j := slices.IndexFunc(r.Windows[:i], w.overlaps); j >= 0 {
			first := strings.Replace(per, fmt.Sprint(i), fmt.Sprint(j), 1)
			if r.Windows[j].InFlight != w.InFlight {
				first = fmt.Sprintf("windows[%d]", j)
			}
			other, are := r.Windows[j], "are equally long: want different lengths, if only by 1s"
			if other.inPeriods() || w.inPeriods() {
				are = "can be equally long: want different lengths"
			}
			return &fault{per, first, fmt.Sprintf("%s %s: %s and %s %s", field, w.PerText(), other, w, are)}
		}
	}
	return nil
}

func (r *Rule) validateAlgorithm(i int) *fault {
	w, at := r.Windows[i], fmt.Sprintf("windows[%d].algorithm", i)
	switch {
	case w.Algorithm == "":
		return nil
	case w.InFlight:
		return faultf(at, "algorithm %q: not allowed beside in_flight, which counts reservations only",
			w.Algorithm)
	case w.inPeriods():
		return faultf(at, "algorithm %q: not allowed, because a %s is counted exactly in one integer", w.Algorithm,
			w.PerText())
	}
	if err := CheckAlgorithm(w.Algorithm); err != nil {
		return faultf(at, "%v", err)
	}
	return nil
}

// CheckAlgorithm returns an error if a rule cannot have an algorithm of this name.
func CheckAlgorithm(name string) error {
	switch {
	case name == "sliding-log-packed":
		return fmt.Errorf("algorithm %q: it was removed; use %s, which counts exactly the same", name, DefaultAlgorithm)
	case !slices.Contains(Algorithms, name):
		return fmt.Errorf("algorithm %q: want %s", name, strings.Join(Algorithms, ", "))
	}
	return nil
}
