package lua

import (
	"slices"
	"strings"
)

// Rule is what the scripts receive of the rules that share one counter.
type Rule struct {
	Algorithm string
	// Decides is how many of the windows decide; they stand first. The others
	// belong to shadow rules.
	Decides int
	// Setting is one number for the algorithm. The logs: how often they are trimmed and
	// their expiry is renewed, in ms, 0 at each write. Buckets: how many. Others: unused.
	Setting int64
	// SpanMs is the longest window.
	SpanMs int64
	// Spec is the levels as text, a line per rule; levels.lua says how.
	Spec    string
	Windows []Window
	// Parts are those of a Mixed rule. Of one of algorithm Penalty, Penalties has the steps, in ms, and
	// ForgetMs for how long after the end of one it is remembered.
	Parts     []Part
	Penalties []int64
	ForgetMs  int64
}

// Part is what an algorithm counts of a Mixed rule. Its form stands in the name of the rule's
// counters, at the same place (MixedForm).
type Part struct {
	Algorithm       string
	Setting, SpanMs int64
	Windows         []int // indices into Rule.Windows
}

// Window is one window of a Rule, in milliseconds and units.
type Window struct {
	Ms, Limit, Lowest int64
	// InFlight windows count what is reserved alone, and Ms is how long at most.
	InFlight bool
	// ID and FromMs are those of a window of the calendar, else 0: which of them it is, among
	// those of one counter, and when its period began, which lasts for Ms.
	ID, FromMs int64
}

func (r *Rule) appendTo(args []any) []any {
	args = append(args, r.Algorithm, r.Decides, r.Setting, r.SpanMs, r.Spec, len(r.Windows))
	for _, w := range r.Windows {
		ms := w.Ms
		if w.InFlight {
			ms = -ms
		}
		args = append(args, ms, w.Limit, w.Lowest)
	}
	switch r.Algorithm {
	case Calendar:
		for _, w := range r.Windows {
			args = append(args, w.ID, w.FromMs)
		}
	case Mixed:
		args = r.appendParts(args)
	}
	return args
}

func (r *Rule) appendParts(args []any) []any {
	args = append(args, len(r.Parts))
	for _, p := range r.Parts {
		args = append(args, p.Algorithm, p.Setting, p.SpanMs, len(p.Windows))
		for _, w := range p.Windows {
			args = append(args, w+1)
		}
		if p.Algorithm == Penalty {
			args = append(args, len(r.Penalties))
			for _, ms := range r.Penalties {
				args = append(args, ms)
			}
			args = append(args, r.ForgetMs)
		}
		for _, w := range p.Windows {
			if p.Algorithm == Calendar {
				args = append(args, r.Windows[w].ID, r.Windows[w].FromMs)
			}
		}
	}
	return args
}

// addAlgorithms adds those whose scripts the rule needs to a sorted list that holds each once.
func (r *Rule) addAlgorithms(list []string) []string {
	for _, p := range r.Parts {
		list = with(list, p.Algorithm)
	}
	return with(list, r.Algorithm)
}

// MixedForm gives the form of a Mixed rule's counters out of those of its parts.
func MixedForm(forms []string) string { return strings.Join(forms, "+") }

// PartNames gives the names of the counters that a counter of this name has as its parts; none
// where it is not of a Mixed rule.
func PartNames(name string) []string {
	at := strings.Index(name, "}:") + 2
	end := at + max(0, strings.IndexByte(name[at:], ':'))
	if at < 2 || !strings.Contains(name[at:end], "+") {
		return nil
	}
	var names []string
	for form := range strings.SplitSeq(name[at:end], "+") {
		names = append(names, name[:at]+form+name[end:])
	}
	return names
}

// withParts adds the parts of mixed counters behind keys, and their number behind args; see mixed.lua.
func withParts(keys []string, args []any) ([]string, []any) {
	n := len(keys)
	for i, name := range keys[:n] {
		if i == 0 || keys[i-1] != name {
			keys = append(keys, PartNames(name)...)
		}
	}
	return keys, append(args, len(keys)-n)
}

// shadows is how many windows do not decide.
func (r *Rule) shadows() int { return len(r.Windows) - r.Decides }

// with adds a name to a sorted list that holds each once.
func with(list []string, name string) []string {
	i, found := slices.BinarySearch(list, name)
	if found {
		return list
	}
	return slices.Insert(list, i, name)
}
