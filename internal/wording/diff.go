package wording

import (
	"fmt"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/windows"
)

// Kinds of changes.
const (
	Added   = "added"
	Removed = "removed"
	Renamed = "renamed"
	Moved   = "moved"
	Changed = "changed"
)

// Change is one thing that differs between two sets of rules.
type Change struct {
	Kind string `json:"kind"` // added, removed, renamed, moved or changed
	Rule string `json:"rule"` // its name in the new rules; if it was removed, in the old rules
	Text string `json:"text"` // what differs
	// Follows is the consequence, "" if there is nothing to say.
	Follows string `json:"follows,omitempty"`
}

// String returns the whole change in one line.
func (c Change) String() string {
	text := c.Rule + ": " + c.Text
	if c.Follows != "" {
		text += "; " + c.Follows
	}
	return text
}

// pair is one rule in both sets, with its places in them, from 0.
type pair struct {
	before, after *windows.Rule
	from, to      int
}

// Diff returns what differs between two sets of rules: first the removed rules, then the new rules
// in their order. It is empty if the rules are the same.
func Diff(before, after *windows.Rules) []Change {
	old, now := before.List(), after.List()
	pairs := pairsOf(old, now)
	var out []Change
	for _, r := range old {
		if !slices.ContainsFunc(pairs, func(p pair) bool { return p.before == r }) {
			out = append(out, removed(r))
		}
	}
	inPlace := longestRising(pairs)
	for i, r := range now {
		j := slices.IndexFunc(pairs, func(p pair) bool { return p.after == r })
		if j < 0 {
			out = append(out, added(r, i, len(now)))
			continue
		}
		p := pairs[j]
		if p.before.Name != p.after.Name {
			out = append(out, renamed(p))
		}
		if !inPlace[p] {
			out = append(out, moved(p, pairs))
		}
		out = append(out, fields(p.before, p.after)...)
	}
	return out
}

// pairsOf finds the rules that are in both sets, in the new order. It compares their names first.
// The remaining rules with the same windows and match were renamed.
func pairsOf(old, now []*windows.Rule) []pair {
	var pairs []pair
	known, taken := make([]bool, len(now)), make([]bool, len(old))
	take := func(id func(r *windows.Rule) string) {
		places := map[string][]int{} // id → where in old
		for i, r := range old {
			if !taken[i] {
				places[id(r)] = append(places[id(r)], i)
			}
		}
		for to, r := range now {
			if from := places[id(r)]; !known[to] && len(from) > 0 {
				places[id(r)] = from[1:]
				known[to], taken[from[0]] = true, true
				pairs = append(pairs, pair{old[from[0]], r, from[0], to})
			}
		}
	}
	take(func(r *windows.Rule) string { return r.Name })
	take(func(r *windows.Rule) string { return fmt.Sprint(r.Match, "\n", r.Windows) })
	slices.SortFunc(pairs, func(a, b pair) int { return a.to - b.to })
	return pairs
}

// longestRising returns the largest set of pairs that have kept their order. The other pairs have moved.
func longestRising(pairs []pair) map[pair]bool {
	length, previous := make([]int, len(pairs)), make([]int, len(pairs))
	last := -1
	for i := range pairs {
		length[i], previous[i] = 1, -1
		for j := range i {
			if pairs[j].from < pairs[i].from && length[j]+1 > length[i] {
				length[i], previous[i] = length[j]+1, j
			}
		}
		if last < 0 || length[i] > length[last] {
			last = i
		}
	}
	kept := map[pair]bool{}
	for ; last >= 0; last = previous[last] {
		kept[pairs[last]] = true
	}
	return kept
}

func removed(r *windows.Rule) Change {
	c := Change{Kind: Removed, Rule: r.Name, Text: fmt.Sprintf("removed; it was %s", Rule(r))}
	switch {
	case r.Match == "":
		c.Follows = "an override that names it has no effect"
	case !takesKeys(r):
		c.Follows = "its decisions are released"
	default:
		c.Follows = "its decisions are released, and its keys fall to the next rule that matches, or to none"
	}
	return c
}

func added(r *windows.Rule, place, all int) Change {
	c := Change{Kind: Added, Rule: r.Name,
		Text: fmt.Sprintf("added as the %s of %s: %s", english.Ordinal(place+1), english.Number(int64(all)), Rule(r))}
	if takesKeys(r) && place+1 < all {
		c.Follows = "it takes its keys from the rules below it"
	}
	return c
}

func renamed(p pair) Change {
	c := Change{Kind: Renamed, Rule: p.after.Name, Text: "renamed, was " + p.before.Name,
		Follows: "decisions and alerts have the new name, which subscribers, dashboards and overrides may have to " +
			"learn"}
	if len(p.after.CountedAnew(p.before)) == 0 {
		c.Follows = "what keys have spent stays; " + c.Follows
	}
	return c
}

// moved describes which rules the rule has passed, and what follows.
func moved(p pair, pairs []pair) Change {
	var above, below, gains, loses []string // above: the rules that it is above now
	for _, o := range pairs {
		switch {
		case o.from < p.from && o.to > p.to:
			above = append(above, o.after.Name)
			if takesKeys(o.after) {
				gains = append(gains, o.after.Name)
			}
		case o.from > p.from && o.to < p.to:
			below = append(below, o.after.Name)
			if takesKeys(o.after) {
				loses = append(loses, o.after.Name)
			}
		}
	}
	var text, follows []string
	if len(above) > 0 {
		text = append(text, "above "+some(above, "and"))
	}
	if len(below) > 0 {
		text = append(text, "below "+some(below, "and"))
	}
	if len(gains) > 0 && takesKeys(p.after) {
		follows = append(follows, fmt.Sprintf("keys that also match %s fall under %s now", some(gains, "or"),
			p.after.Name))
	}
	if len(loses) > 0 && takesKeys(p.after) {
		follows = append(follows, fmt.Sprintf("keys that also match %s no longer fall under %s", some(loses, "or"),
			p.after.Name))
	}
	if len(follows) == 0 {
		follows = []string{"its keys are the same"}
	}
	return Change{Kind: Moved, Rule: p.after.Name, Text: "moved " + strings.Join(text, " and "),
		Follows: strings.Join(follows, "; ")}
}

// some returns the names, or the first few of them and the number of the others.
func some(names []string, last string) string {
	const most = 4
	if len(names) > most+1 {
		names = append(names[:most:most], english.Number(int64(len(names)-most))+" others")
	}
	return english.List(names, last)
}

// takesKeys reports whether the rules below this rule do not get its keys, so that its place matters.
func takesKeys(r *windows.Rule) bool { return r.Match != "" && (!r.Shadow || r.Exclusive) }
