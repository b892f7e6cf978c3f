package windows

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	// Its language is small (* ? \), matches in place without allocating, works
	// on UTF-8 and can be bounded; see try.fits.
	"github.com/tidwall/match"
)

// Rules are the rules of one file, in its order. They never change; a reload
// makes new ones. Built by Load, Parse or NewRules.
type Rules struct {
	list  []*Rule
	named map[string]*Rule // name → rule

	// The index: literals that patterns begin with, sorted, and beside each what
	// a key that begins with it may fit. With n literals a key costs log n
	// comparisons and then only the patterns whose literal it has.
	literals []string
	branches []branch
}

// branch belongs to the literal of the same position.
type branch struct {
	parent int    // the longest other literal that this one begins with, or -1
	tries  []*try // in file order, those of all parents among them
}

// try is one rule's pattern, split after its literal beginning.
type try struct {
	rule  *Rule
	order int    // in the file
	skip  int    // the literal's length in bytes
	rest  string // the pattern that what follows in the key must fit
}

// NewRules makes rules of copies of those given, which must obey what Parse
// asks of a file. An empty Algorithm or OnError means the default; a Hold of 0
// is 0. The error names the rule.
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

// newRules also says which rule the fault is in, -1 for the list as a whole.
// fault.first is then from the top: rules[0].name.
func newRules(list []*Rule) (*Rules, int, *fault) {
	if len(list) == 0 {
		return nil, -1, faultf("", "rules is an empty list: want at least one")
	}
	r := &Rules{named: make(map[string]*Rule, len(list))}
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
		r.list, r.named[rule.Name] = append(r.list, rule), rule
	}
	r.index()
	return r, 0, nil
}

// Combine gives the rules of each in turn, the very same, under one index. A
// name that two of them have is an error.
func Combine(each ...*Rules) (*Rules, error) {
	r := &Rules{named: map[string]*Rule{}}
	for _, rules := range each {
		for _, rule := range rules.list {
			if r.named[rule.Name] != nil {
				return nil, fmt.Errorf("rule %q: want each name once", rule.Name)
			}
			r.list, r.named[rule.Name] = append(r.list, rule), rule
		}
	}
	r.index()
	return r, nil
}

// List gives the rules in file order. Neither they nor the list are to be changed.
func (r *Rules) List() []*Rule { return slices.Clip(r.list) }

// Named gives the rule of that name, nil if there is none.
func (r *Rules) Named(name string) *Rule { return r.named[name] }

// Match gives the first rule in file order whose pattern fits the key, which
// is valid UTF-8, or nil. It does not allocate.
func (r *Rules) Match(key string) *Rule {
	// Every literal that key begins with is, or is a parent of, the last literal
	// that does not sort after key.
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
	for _, t := range r.branches[i].tries {
		if t.fits(key) {
			return t.rule
		}
	}
	return nil
}

// maxSteps bounds match.MatchLimit to maxSteps steps for each byte of the key.
// Unbounded, it goes back to every star: *a*a*a*a*b* over 128 times "a" took
// 4.9 s. One is exact: where a key fits, a piece between two stars put at the
// first place where it fits never has to be taken back, so every step after the
// first leaves a character of the key behind for good. Who needs more does not fit.
const maxSteps = 1

// fits expects a key that begins with the literal.
func (t *try) fits(key string) bool {
	fits, _ := match.MatchLimit(key[t.skip:], t.rest, maxSteps)
	return fits
}

func (r *Rules) index() {
	own := map[string][]*try{} // literal → its tries
	for i, rule := range r.list {
		literal, rest := cutLiteral(rule.Match)
		own[literal] = append(own[literal], &try{rule, i, len(literal), rest})
	}
	r.literals = slices.Sorted(maps.Keys(own))
	r.branches = make([]branch, len(r.literals))
	for i, literal := range r.literals {
		parent, tries := i-1, own[literal]
		for parent >= 0 && !strings.HasPrefix(literal, r.literals[parent]) {
			parent = r.branches[parent].parent
		}
		if parent >= 0 {
			tries = append(tries, r.branches[parent].tries...)
			slices.SortFunc(tries, func(a, b *try) int { return a.order - b.order })
		}
		// What comes after a rule that takes all is never tried.
		if all := slices.IndexFunc(tries, func(t *try) bool { return t.rest == "*" }); all >= 0 {
			tries = tries[:all+1]
		}
		r.branches[i] = branch{parent, slices.Clip(tries)}
	}
}

// cutLiteral splits a pattern before its first wildcard and takes the escapes
// out of what comes before.
func cutLiteral(pattern string) (literal, rest string) {
	var b strings.Builder
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '*', '?':
			return b.String(), pattern[i:]
		case '\\':
			i++ // a pattern does not end in a lone one: validate
		}
		b.WriteByte(pattern[i])
	}
	return b.String(), ""
}
