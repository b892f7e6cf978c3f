package windows

import (
	"fmt"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/internal/inprocess"
	"github.com/streamcounter/streamcounter/lua"
)

// MaxShadows is how many shadow rules are evaluated for one key at most: the first
// that match, in file order. It limits the cost of a check and of a fold.
const MaxShadows = 8

// Plan is what is evaluated for a key: the rule that decides, and the shadow rules
// that match, on the same count. It is compiled to meters. Each meter is one key in Redis, in which
// one algorithm counts the windows that use it, of all rules. A plan never changes.
// Rules.Match returns the plan of a key, and PlanOf returns a plan with only one rule.
type Plan struct {
	// Live decides; nil if only shadow rules match. Then nothing is denied.
	Live *Rule
	// Shadows are evaluated and published and never decide; in file order.
	Shadows []*Rule

	rules  []*Rule // Live and Shadows
	places []place // rule, as in Rules() → the place of its windows
	// The plans for the library. With periodic, a meter's expiry is renewed once per everyMs, an eighth of
	// the longest window. fresh is used for everyMs after a change of the rules. With it, each write
	// renews the expiry, because a meter that was written under a shorter window would expire too early.
	fresh, periodic *scriptPlan
	everyMs         int64
	// resolutionMs is how far apart in time events of one key may be and still share
	// an entry: the shortest Resolution of its rules.
	resolutionMs int64
	lease        time.Duration // see LeaseTime

	replacement
	values []meter          // its meters that count values
	local  []inprocess.Rule // its rules, for counting in this process
	kept   map[string]int64 // form of a meter → how long at least it keeps what it counts, in ms
}

// place says where a rule's windows begin among the windows of the plan.
type place struct {
	from  int
	alone *scriptPlan // the plan with only this rule, for sweeps
}

// PlanOf returns the plan with only this rule.
func PlanOf(r *Rule) *Plan {
	if r.Shadow {
		return newPlan(nil, []*Rule{r})
	}
	return newPlan(r, nil)
}

func newPlan(live *Rule, shadows []*Rule) *Plan { return newPlanThatKeeps(live, shadows, nil) }

// newPlanThatKeeps returns a plan whose meters keep what they count for a time at least. kept has that time
// in ms, by the meters' form.
func newPlanThatKeeps(live *Rule, shadows []*Rule, kept map[string]int64) *Plan {
	p := &Plan{Live: live, Shadows: shadows, rules: shadows, kept: kept}
	if live != nil {
		p.rules = append([]*Rule{live}, shadows...)
	}
	p.lease = p.leaseTime()
	rules := scriptRules(p.rules)
	p.fresh = p.script(p.rules, rules, false)
	for _, m := range p.fresh.meters {
		if m.Algorithm == lua.Distinct {
			p.values = append(p.values, m)
		}
	}
	p.periodic = p.fresh
	if !p.rules[0].Unlevelled {
		p.periodic = p.script(p.rules, rules, true)
	}
	spanMs, from := int64(1), 0
	for i, r := range p.rules {
		p.local = append(p.local, r.inProcess())
		at := place{from, p.fresh}
		if !r.Unlevelled {
			at.alone = p.scriptAlone(p.rules[i:i+1], rules[i:i+1])
		}
		p.places = append(p.places, at)
		from += len(r.Windows)
		if ms := r.Resolution().Milliseconds(); p.resolutionMs == 0 || ms < p.resolutionMs {
			p.resolutionMs = ms
		}
		spanMs = max(spanMs, r.Longest().Milliseconds())
	}
	p.everyMs = max(1, spanMs/8)
	return p
}

// Forms returns the forms of the plan's meters, which are parts of the names of keys. Do not change the list.
func (p *Plan) Forms() []string { return p.fresh.forms }

// Script returns the plan for the library as of clockMs, by the clock of Redis. sinceMs is how long ago the rules
// changed.
func (p *Plan) Script(sinceMs, clockMs int64) *lua.Plan {
	if sinceMs < p.everyMs {
		return p.fresh.at(clockMs)
	}
	return p.periodic.at(clockMs)
}

// noRule is the plan for sweeps of a key that no rule counts.
var noRule = (&Plan{}).scriptAlone(nil, []lua.Rule{})

// Alone returns Script and Forms of a plan with only one of Rules; -1: with none.
func (p *Plan) Alone(rule int, clockMs int64) (script *lua.Plan, forms []string) {
	alone := noRule
	if rule >= 0 {
		alone = p.places[rule].alone
	}
	return alone.at(clockMs), alone.forms
}

// ResolutionMs returns how far apart in time events of one key may be and still share an entry.
func (p *Plan) ResolutionMs() int64 { return p.resolutionMs }

// InProcess returns Rules for counting in this process. Do not change the list.
func (p *Plan) InProcess() []inprocess.Rule { return p.local }

// formFor returns the form of the meter that counts a window of a rule. Buckets of two sizes do
// not fit into one meter: the first rule with buckets has the algorithm's form, and a rule with
// another number of buckets has that form with the number appended.
func (p *Plan) formFor(r *Rule, w Window) string {
	algorithm := r.AlgorithmOf(w)
	form := lua.Form(algorithm)
	switch algorithm {
	case SlidingBuckets:
	case lua.Distinct:
		return w.valueOf().form()
	default:
		return form
	}
	for _, first := range p.Rules() {
		if first.Buckets != 0 {
			if first.Buckets != r.Buckets {
				return fmt.Sprint(form, r.Buckets)
			}
			break
		}
	}
	return form
}

// Rules returns the rules of the plan: first the one that decides, if there is one. A
// nil plan has none. Do not change the list.
func (p *Plan) Rules() []*Rule {
	if p == nil {
		return nil
	}
	return p.rules
}

// Name returns the name of the rule that decides; empty if there is none.
func (p *Plan) Name() string {
	if p.Live == nil {
		return ""
	}
	return p.Live.Name
}

func (p *Plan) exclusive() bool { return p.Live == nil && p.Shadows[0].Exclusive }

// maxPlans bounds how many combinations of rules are remembered. There are far
// fewer, unless keys match shadow rules in very many combinations.
const maxPlans = 4096

// planCache has the plans that were made from other plans: step → the plan.
type planCache[S comparable] struct {
	mu    sync.RWMutex
	plans map[S]*Plan
}

// plan returns the plan of a step. The first call for a step calls make and stores its result.
func (m *planCache[S]) plan(step S, make func() *Plan) *Plan {
	m.mu.RLock()
	plan, ok := m.plans[step]
	m.mu.RUnlock()
	if ok {
		return plan
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if plan, ok = m.plans[step]; ok {
		return plan
	}
	if m.plans == nil || len(m.plans) >= maxPlans {
		m.plans = map[S]*Plan{}
	}
	plan = make()
	m.plans[step] = plan
	return plan
}

// shadowStep is a plan and a shadow rule that is added to it.
type shadowStep struct {
	plan *Plan
	rule *Rule
}
