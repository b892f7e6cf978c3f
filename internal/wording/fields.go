package wording

import (
	"fmt"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/windows"
)

const effect = "decisions that no longer hold are released, and keys that are above are throttled, at once"

// fields returns which fields of a rule differ, except its name.
func fields(a, b *windows.Rule) []Change {
	var out []Change
	add := func(differs bool, text, follows string) {
		if differs {
			out = append(out, Change{Kind: Changed, Rule: b.Name, Text: text, Follows: follows})
		}
	}
	add(a.Match != b.Match, fmt.Sprintf("match %s, was %s", b.MatchText(), a.MatchText()),
		rematched(a, b))
	recounts := b.CountedAnew(a)
	other := algorithm(a) != algorithm(b) || len(recounts) > 0
	resized := other && slices.Equal(a.Algorithms(), b.Algorithms()) && a.Buckets != b.Buckets
	add(other && !resized, fmt.Sprintf("%s, was %s", algorithm(b), algorithm(a)), recounted(a, b, recounts))
	add(resized, fmt.Sprintf("%s a window, was %s", buckets(b.Buckets), english.Number(a.Buckets)),
		recounted(a, b, recounts))
	out = append(out, spans(a, b)...)
	for _, c := range b.OptionChanges(a) {
		add(true, c.Is+", was: "+c.Was, c.Follows)
	}
	return out
}

// recounted returns what follows if another algorithm counts some windows of a rule. It counts those in anew from zero.
func recounted(a, b *windows.Rule, anew []windows.Window) string {
	var kept bool
	var spans, follows []string
	for _, w := range b.Windows {
		i := slices.IndexFunc(a.Windows, w.Same)
		switch {
		case w.InFlight || i < 0:
		case slices.ContainsFunc(anew, w.Same):
			spans = append(spans, within(b, w))
		default:
			kept = true
			if a.AlgorithmOf(a.Windows[i]) != b.AlgorithmOf(w) {
				follows = append(follows, within(b, w)+": "+begins(a, b, w))
			}
		}
	}
	switch {
	case len(spans) > 0 && kept:
		follows = append(follows, "keys start from zero once "+english.List(spans, "and"))
	case len(spans) > 0:
		follows = append(follows, "keys start from zero once")
	}
	return strings.Join(follows, "; ")
}

// rematched returns what follows if the match of a rule changes.
func rematched(a, b *windows.Rule) string {
	switch {
	case b.Match == "":
		return "its keys fall to the next rule that matches, or to none"
	case !takesKeys(b):
		return "it watches other keys"
	case a.Match == "":
		return "it takes its keys from the rules below it"
	}
	return "keys that it no longer takes fall to the next rule that matches, or to none"
}

// spans returns which windows differ. A window is identified by its span.
func spans(a, b *windows.Rule) []Change {
	var out []Change
	add := func(text, follows string) {
		out = append(out, Change{Kind: Changed, Rule: b.Name, Text: text, Follows: follows})
	}
	find := func(in []windows.Window, w windows.Window) int {
		return slices.IndexFunc(in, w.Same)
	}
	var common [2][]windows.Window // the windows of b that a has too, in a's order and in b's order
	for _, w := range a.Windows {
		if i := find(b.Windows, w); i >= 0 {
			common[0] = append(common[0], b.Windows[i])
			continue
		}
		follows := ""
		if w.InFlight && b.InFlight() == 0 {
			follows = "plain checks are taken too"
		}
		add("no longer "+Window(a, w), follows)
	}
	for _, w := range b.Windows {
		i := find(a.Windows, w)
		if i < 0 {
			add("now also "+Window(b, w), begins(a, b, w))
			continue
		}
		common[1] = append(common[1], w)
		was := a.Windows[i]
		if was.Limit != w.Limit {
			add(fmt.Sprintf("%s %s, was %s", english.Number(w.Limit), within(b, w), english.Number(was.Limit)), effect)
		}
		if is, before := values(w), values(was); is != before {
			follows := ""
			if w.ValueFrom != was.ValueFrom {
				follows = "keys from Envoy's descriptors change, and start from zero"
			}
			add(is+" "+within(b, w)+", was "+before, follows)
		}
		if !was.SamePeriods(w) {
			add(fmt.Sprintf("%s, was %s", within(b, w), within(a, was)), "what was spent in the running period stays")
		}
	}
	if !slices.Equal(common[0], common[1]) {
		add("windows in another order", "answers list them so")
	}
	return out
}

// begins returns what follows for a new window: it counts at first the units that the log of its algorithm has kept.
func begins(a, b *windows.Rule, w windows.Window) string {
	switch {
	case w.InFlight && a.InFlight() > 0:
		return ""
	case w.InFlight:
		return "only reservations are taken, no plain checks"
	}
	switch kept := b.Kept(a, w); {
	case kept == 0:
		return "it begins with nothing"
	case w.Per <= kept:
		return "it is right at once, from what is kept"
	default:
		return fmt.Sprintf("it counts what is kept, %s, and is right after %s", english.Span(kept),
			english.Span(w.Per))
	}
}
