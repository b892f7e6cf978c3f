package windows

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/streamcounter/streamcounter/internal/glob"
)

// Rules are the rules of one file, in its order. They never change; a reload
// makes new ones. Load, Parse and NewRules make them. The zero value has no rule.
type Rules struct {
	list  []*Rule
	named map[string]*Rule // name → rule
	info  map[*Rule]ruleInfo

	// The index: the literals that patterns begin with, sorted, and for each literal its
	// patterns. With n literals a key costs log n comparisons, and then only the patterns
	// whose literal it begins with.
	literals []string
	branches []branch

	withShadow *planCache[shadowStep] // the plans with one more shadow rule
	warnings   []error                // of Parse

	under             // With
	values    bool    // a rule counts values
	fromEntry []*Rule // see WithValueFrom
}

// ruleInfo is what Rules stores for each of its rules.
type ruleInfo struct {
	alone *Plan // the plan with only this rule
	place int   // in the file
}

// branch belongs to the literal at the same position. Its candidates are in file order. It has no copies
// of its parents' candidates: their memory would grow with the square of the number of rules.
type branch struct {
	parent  int          // the longest other literal that this one begins with, or -1
	live    []*candidate // of these and the parents', the first in file order that fits applies; Exclusive ones too
	shadows []*candidate // all that fit are evaluated

	above    int  // the smallest place of the parents' live candidates; math.MaxInt if they have none
	shadowed bool // it or a parent has shadows
}

// candidate is one rule and its pattern.
type candidate struct {
	rule  *Rule
	plan  *Plan // the plan with only this rule
	order int   // the rule's place in the file
	glob.Glob
}

// NewRules returns Rules with copies of the given rules, which must be as valid as
// those of a file for Parse. An empty Algorithm or OnError means the default, but a
// Hold of 0 is 0. The error names the rule.
func NewRules(list []*Rule) (*Rules, error) {
	rules, i, f := newRules(list)
	if f == nil {
		return rules, nil
	}
	if i < 0 {
		return nil, errors.New(f.msg)
	}
	if list[i] == nil || list[i].Name == "" {
		return nil, fmt.Errorf("rules[%d]: %s", i, f.msg)
	}
	return nil, fmt.Errorf("rule %q: %s", list[i].Name, f.msg)
}

// newRules also returns the place of the rule with the fault, -1 for the list as a
// whole. fault.first is then a path from the top: rules[0].name.
func newRules(list []*Rule) (*Rules, int, *fault) {
	if len(list) == 0 {
		return nil, -1, faultf("", "rules is an empty list: want at least one")
	}
	r := &Rules{named: make(map[string]*Rule, len(list)), info: make(map[*Rule]ruleInfo, len(list)),
		withShadow: &planCache[shadowStep]{}, under: newUnder()}
	for i, given := range list {
		if given == nil {
			return nil, i, faultf("", "is nil")
		}
		rule := given.withDefaults()
		if f := rule.validate(); f != nil {
			if f.first != "" {
				f.first = fmt.Sprintf("rules[%d].%s", i, f.first)
			}
			return nil, i, f
		}
		if earlier := r.named[rule.Name]; earlier != nil {
			first := fmt.Sprintf("rules[%d].name", slices.Index(r.list, earlier))
			return nil, i, &fault{"name", first, fmt.Sprintf("name %q: want each name once", rule.Name)}
		}
		slices.Sort(rule.Alerts)
		r.add(rule, PlanOf(rule))
	}
	r.index()
	return r, 0, nil
}

func (r *Rules) add(rule *Rule, alone *Plan) {
	r.named[rule.Name], r.info[rule] = rule, ruleInfo{alone, len(r.list)}
	r.list = append(r.list, rule)
}

// Combine returns the rules of each argument in turn, under one index. It does not
// copy the rules. It returns an error if two rules have the same name.
func Combine(each ...*Rules) (*Rules, error) {
	r := &Rules{named: map[string]*Rule{}, info: map[*Rule]ruleInfo{}, withShadow: &planCache[shadowStep]{},
		under: newUnder()}
	for _, rules := range each {
		r.warnings = append(r.warnings, rules.warnings...)
		for _, rule := range rules.list {
			if r.named[rule.Name] != nil {
				return nil, fmt.Errorf("rule %q: want each name once", rule.Name)
			}
			r.add(rule, rules.info[rule].alone)
		}
	}
	r.index()
	return r, nil
}

// List returns the rules in file order. Do not change the rules or the list.
func (r *Rules) List() []*Rule { return slices.Clip(r.list) }

// Named returns the rule of that name, nil if there is none.
func (r *Rules) Named(name string) *Rule { return r.named[name] }

// PlanOf returns the plan with only this rule: the same pointer that Match returns
// for a key that no other rule matches.
func (r *Rules) PlanOf(rule *Rule) *Plan { return r.info[rule].alone }

// Match returns the plan of a key, which must be valid UTF-8. The plan has the first
// rule in file order that fits and is no shadow, and the shadow rules that fit, wherever
// they are in the file. It is nil if no rule fits. For the same combination of rules, Match returns
// the same pointer, unless operators set something else for the key (With).
// It allocates only for the first key of a combination.
func (r *Rules) Match(key string) *Plan {
	plan, _ := r.Apply(r.match(key), key)
	return plan
}

// match is Match, but ignores what operators have set.
func (r *Rules) match(key string) *Plan {
	// Every literal that key begins with is the last literal that does not sort
	// after key, or a parent of it.
	i, found := slices.BinarySearch(r.literals, key)
	if !found {
		i--
	}
	for i >= 0 && !strings.HasPrefix(key, r.literals[i]) {
		i = r.branches[i].parent
	}
	if i < 0 {
		return nil
	}
	var first *candidate
	for b := &r.branches[i]; ; b = &r.branches[b.parent] {
		for _, t := range b.live {
			if first != nil && first.order < t.order {
				break
			}
			if t.FitsRest(key) {
				first = t
				break
			}
		}
		if b.parent < 0 || first != nil && first.order < b.above {
			break
		}
	}
	var plan *Plan
	if first != nil {
		plan = first.plan
	}
	if r.branches[i].shadowed && (plan == nil || !plan.exclusive()) {
		plan = r.addShadows(plan, i, key)
	}
	return plan
}

// addShadows returns the plan with the first MaxShadows shadow rules that fit the key. i is the key's branch.
func (r *Rules) addShadows(plan *Plan, i int, key string) *Plan {
	var fit [MaxShadows + 1]*candidate // in file order; one place more than needed, to insert
	n := 0
	for ; i >= 0; i = r.branches[i].parent {
		for _, t := range r.branches[i].shadows {
			if n == MaxShadows && fit[n-1].order < t.order {
				break
			}
			if !t.FitsRest(key) {
				continue
			}
			at := n
			for ; at > 0 && t.order < fit[at-1].order; at-- {
				fit[at] = fit[at-1]
			}
			fit[at] = t
			n = min(n+1, MaxShadows)
		}
	}
	for _, t := range fit[:n] {
		if plan == nil {
			plan = t.plan
			continue
		}
		before := plan
		plan = r.withShadow.plan(shadowStep{before, t.rule}, func() *Plan {
			return newPlan(before.Live, append(slices.Clip(before.Shadows), t.rule))
		})
	}
	return plan
}

func (r *Rules) index() {
	r.values = slices.ContainsFunc(r.list, (*Rule).distinct)
	r.fromEntry = slices.DeleteFunc(slices.Clone(r.list), func(r *Rule) bool { return !r.HasValueFrom() })
	own := map[string]*branch{} // literal → its branch
	for i, rule := range r.list {
		if rule.Match == "" {
			continue // a tier
		}
		pattern := glob.Split(rule.Match)
		b := own[pattern.Literal]
		if b == nil {
			b = &branch{}
			own[pattern.Literal] = b
		}
		t := &candidate{rule, r.info[rule].alone, i, pattern}
		if rule.Shadow && !rule.Exclusive {
			b.shadows = append(b.shadows, t)
		} else {
			b.live = append(b.live, t)
		}
	}
	r.literals = slices.Sorted(maps.Keys(own))
	r.branches = make([]branch, len(r.literals))
	for i, literal := range r.literals {
		parent := i - 1
		for parent >= 0 && !strings.HasPrefix(literal, r.literals[parent]) {
			parent = r.branches[parent].parent
		}
		b := own[literal]
		b.parent, b.above, b.shadowed = parent, math.MaxInt, len(b.shadows) > 0
		if parent >= 0 {
			up := r.branches[parent]
			if b.above = up.above; len(up.live) > 0 {
				b.above = min(b.above, up.live[0].order)
			}
			b.shadowed = b.shadowed || up.shadowed
		}
		r.branches[i] = *b
	}
}

// Changed returns a function that reports whether the rules that are evaluated for a key differ
// from those under `before`, or have other content. It is nil if all rules are the same.
func (r *Rules) Changed(before *Rules) func(key string) bool {
	if reflect.DeepEqual(r.list, before.list) {
		return nil
	}
	var same sync.Map // [2]*Plan → bool
	return func(key string) bool {
		pair := [2]*Plan{before.Match(key), r.Match(key)}
		v, ok := same.Load(pair)
		if !ok {
			v, _ = same.LoadOrStore(pair, reflect.DeepEqual(pair[0].Rules(), pair[1].Rules()))
		}
		return !v.(bool)
	}
}
