package windows

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/lua"
)

// Event is one stored event of a key that a rule matches.
type Event struct {
	ID    string
	Ms    int64 // the millisecond of ID
	Key   string
	Count int64
	// Given is the id that its producer gave it, empty where it gave none: of
	// events of a key with the same id only the first counts.
	Given string
}

// Folded counts the events of a batch by what became of them.
type Folded struct {
	Folded int64 // counted
	Late   int64 // acknowledged, but out of every window already
	Gone   int64 // counted before, by somebody
	Again  int64 // sent before by their producer, with the same id
	Merged int64 // of all of these: events that shared another's entry
	// Transitions is how many levels changed.
	Transitions int64
	// Unreadable counters held what none of ours wrote. They began anew.
	Unreadable int64
}

// keyGroups is a key's groups while a batch is put together.
type keyGroups struct {
	counter string
	groups  []lua.FoldGroup
	firsts  []int64 // group → ms of its first event
}

// group puts a batch into the shape that fold.lua takes. Events of one key
// share a group, and so an entry in its log, when their counts are the same and
// their times lie within the rule's resolution. The same count is what keeps
// the gate exact: XACK tells how many of a group were pending, not which.
func group(events []Event, match func(key string) *Rule, counter func(r *Rule, key string) string, script func(*Rule) *lua.Rule) (rules []lua.FoldRule, unmatched []string) {
	type ruleKeys struct {
		rule *Rule
		keys []*keyGroups
	}
	var order []*ruleKeys
	byRule := map[*Rule]*ruleKeys{}
	byKey := make(map[string]*keyGroups, len(events))
	resolution := map[string]int64{} // key → ms; only what byKey holds
	for _, e := range events {
		k := byKey[e.Key]
		if k == nil {
			rule := match(e.Key)
			if rule == nil {
				unmatched = append(unmatched, e.ID)
				continue
			}
			rk := byRule[rule]
			if rk == nil {
				rk = &ruleKeys{rule: rule}
				byRule[rule] = rk
				order = append(order, rk)
			}
			k = &keyGroups{counter: counter(rule, e.Key)}
			rk.keys = append(rk.keys, k)
			byKey[e.Key] = k
			resolution[e.Key] = rule.Resolution().Milliseconds()
		}
		k.add(e, resolution[e.Key])
	}
	for _, rk := range order {
		fr := lua.FoldRule{Rule: script(rk.rule)}
		for _, k := range rk.keys {
			k.sort()
			fr.Groups = append(fr.Groups, k.groups...)
		}
		rules = append(rules, fr)
	}
	return rules, unmatched
}

func (k *keyGroups) add(e Event, resolution int64) {
	for i := len(k.groups) - 1; i >= 0 && e.Ms-k.firsts[i] <= resolution; i-- {
		if g := &k.groups[i]; g.Count == e.Count && (g.Given != nil) == (e.Given != "") {
			g.IDs = append(g.IDs, e.ID)
			if e.Given != "" {
				g.Given = append(g.Given, e.Given)
			}
			return
		}
	}
	g := lua.FoldGroup{Counter: k.counter, Count: e.Count, IDs: []string{e.ID}}
	if e.Given != "" {
		g.Given = []string{e.Given}
	}
	k.groups = append(k.groups, g)
	k.firsts = append(k.firsts, e.Ms)
}

// sort orders the groups by their newest event, the time they are put at.
func (k *keyGroups) sort() {
	if len(k.groups) < 2 {
		return
	}
	slices.SortStableFunc(k.groups, func(a, b lua.FoldGroup) int {
		return compareIDs(a.IDs[len(a.IDs)-1], b.IDs[len(b.IDs)-1])
	})
}

func compareIDs(a, b string) int {
	aMs, aSeq := splitID(a)
	bMs, bSeq := splitID(b)
	return cmp.Or(cmp.Compare(aMs, bMs), cmp.Compare(aSeq, bSeq))
}

func splitID(id string) (ms, seq uint64) {
	a, b, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseUint(a, 10, 64)
	seq, _ = strconv.ParseUint(b, 10, 64)
	return ms, seq
}
