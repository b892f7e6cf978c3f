package client

import (
	"sync"
	"time"

	// hashicorp/golang-lru: the usual LRU of Go, bounded by construction.
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/streamcounter/streamcounter/api"
)

// knownRules bounds how many rules are remembered; a server has a few dozen.
const knownRules = 10_000

// known remembers from answers which rule each key has, and which limits the rule has, so that Local can continue
// with them.
type known struct {
	ruleOf func(key string) (Rule, bool) // the user's own, or nil

	mu    sync.Mutex
	keys  *simplelru.LRU[string, knownKey]
	rules *simplelru.LRU[string, *Rule] // name → the rule, as of the last answer
}

type knownKey struct {
	rule string // its name
	own  *Rule  // with the limits that an operator has set for the key alone; nil: it has those of the rule
}

func newKnown(keys int, ruleOf func(key string) (Rule, bool)) *known {
	k := &known{ruleOf: ruleOf}
	k.keys, _ = simplelru.NewLRU[string, knownKey](keys, nil) // the error is for a size below 1
	k.rules, _ = simplelru.NewLRU[string, *Rule](knownRules, nil)
	return k
}

// update records the rule and the limits of an answer. Only an answer of the shared count has all windows of the
// rule. If an operator has set something for the key, the limits are not those of the rule's other keys.
func (k *known) update(a api.CheckAnswer) {
	if a.Rule == "" { // no rule limits the key, or none does any more
		k.mu.Lock()
		defer k.mu.Unlock()
		k.keys.Remove(a.Key)
		return
	}
	if a.Source != api.SourceRedis && a.Source != api.SourceCache || len(a.Windows) == 0 {
		return
	}
	r := ruleOf(a)
	if r.validate() != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if a.ByOperator != (api.ByOperator{}) {
		k.keys.Add(a.Key, knownKey{a.Rule, r})
		return
	}
	k.rules.Add(a.Rule, r)
	k.keys.Add(a.Key, knownKey{rule: a.Rule})
}

// ruleOf returns the rule of an answer. It leaves out windows that count reservations (in flight) or values: a policy
// cannot count them.
func ruleOf(a api.CheckAnswer) *Rule {
	r := &Rule{Name: a.Rule}
	for _, w := range a.Windows {
		if !w.InFlight && !w.OfValues() {
			r.Limits = append(r.Limits, Limit{w.Limit, time.Duration(w.WindowMs) * time.Millisecond})
		}
	}
	return r
}

// rule returns the rule of a key, nil if it is not known.
func (k *known) rule(key string) *Rule {
	if k.ruleOf != nil {
		if r, ok := k.ruleOf(key); ok && r.validate() == nil {
			return &r
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	one, ok := k.keys.Get(key)
	if !ok || one.own != nil {
		return one.own
	}
	r, _ := k.rules.Get(one.rule)
	return r
}
