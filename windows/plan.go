package windows

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
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

	rules  []*Rule  // Live and Shadows
	forms  []string // of the meters: their words in the names of keys
	places []place  // rule, as in Rules() → the place of its windows
	// The plans for the library. A meter's expiry is renewed once per everyMs, an eighth of its longest
	// window. In the first such eighth after a change of the rules it is renewed at
	// each write (fresh), because a meter that was written under a shorter window
	// would expire too early.
	fresh, settled *scriptPlan
	everyMs        int64
	// resolutionMs is how far apart in time events of one key may be and still share
	// an entry: the shortest Resolution of its rules.
	resolutionMs int64
	lease        time.Duration // see LeaseTime

	replacement
	values []valueOf        // what its meters with values count, in the order of the meters
	local  []inprocess.Rule // its rules, for counting in this process
	kept   map[string]int64 // form of a meter → how long at least it keeps what it counts, in ms
}

// place says where a rule's windows begin among the windows of the plan.
type place struct {
	from int
	// alone is the plan with only this rule, for sweeps, and forms are the forms of its meters.
	alone *scriptPlan
	forms []string
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
	p.fresh, p.forms = p.script(p.rules, false)
	for _, m := range p.fresh.meters {
		if m.algorithm == lua.Distinct {
			p.values = append(p.values, m.value)
		}
	}
	p.settled, p.everyMs = p.fresh, max(1, p.fresh.spanMs()/8)
	if !p.rules[0].Unlevelled {
		p.settled, _ = p.script(p.rules, true)
	}
	from := 0
	for _, r := range p.rules {
		p.local = append(p.local, r.inProcess())
		at := place{from: from, alone: p.fresh, forms: p.forms}
		if len(p.rules) > 1 {
			at.alone, at.forms = p.script([]*Rule{r}, false)
		}
		p.places = append(p.places, at)
		from += len(r.Windows)
		if ms := r.Resolution().Milliseconds(); p.resolutionMs == 0 || ms < p.resolutionMs {
			p.resolutionMs = ms
		}
	}
	return p
}

// Forms returns the forms of the plan's meters: their words in the names of keys. Do not change the list.
func (p *Plan) Forms() []string { return p.forms }

// Script returns the plan for the library as of clockMs, by the clock of Redis. sinceMs is how long ago the rules
// changed.
func (p *Plan) Script(sinceMs, clockMs int64) *lua.Plan {
	if sinceMs < p.everyMs {
		return p.fresh.at(clockMs)
	}
	return p.settled.at(clockMs)
}

// Alone returns Script and Forms of a plan with only one of Rules.
func (p *Plan) Alone(rule int, clockMs int64) (script *lua.Plan, forms []string) {
	at := p.places[rule]
	return at.alone.at(clockMs), at.forms
}

// ResolutionMs returns how far apart in time events of one key may be and still share an entry.
func (p *Plan) ResolutionMs() int64 { return p.resolutionMs }

// InProcess returns Rules for counting in this process. Do not change the list.
func (p *Plan) InProcess() []inprocess.Rule { return p.local }

// script returns the plan for the library of some rules, and the forms of their meters.
func (p *Plan) script(rules []*Rule, settled bool) (script *scriptPlan, forms []string) {
	meters := p.metersOf(rules)
	for _, m := range meters {
		forms = append(forms, m.form)
	}
	return newScriptPlan(rules, meters, p.periodIDs(rules), settled), forms
}

// metersOf returns the meters of some rules of the plan.
func (p *Plan) metersOf(rules []*Rule) (meters []scriptMeter) {
	add := func(r *Rule, form, algorithm string) *scriptMeter {
		i := slices.IndexFunc(meters, func(m scriptMeter) bool { return m.form == form })
		if i < 0 {
			i = len(meters)
			meters = append(meters, scriptMeter{form: form, algorithm: algorithm, buckets: r.Buckets,
				spanMs: max(1, p.kept[form])})
		}
		return &meters[i]
	}
	window := 0
	for _, r := range rules {
		for _, w := range r.Windows {
			if a := r.AlgorithmOf(w); a != "" {
				m := add(r, p.formFor(r, w), a)
				ms := w.Per.Milliseconds()
				m.windows, m.spanMs, m.windowMs = append(m.windows, window), max(m.spanMs, ms), max(m.windowMs, ms)
				if a == lua.Distinct {
					m.value, m.keep = w.valueOf(), max(m.keep, w.Limit+1)
					m.publish = max(m.publish, w.PublishValues)
				}
			}
			window++
		}
		for _, o := range r.meterOptions() {
			add(r, o.algorithm, o.algorithm)
		}
		if !r.Charges() {
			m := add(r, p.formFor(r, Window{}), r.Algorithm)
			m.spanMs = max(m.spanMs, r.Longest().Milliseconds())
		}
	}
	return meters
}

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

// plans makes the plans of several rules, each once.
type plans struct {
	mu   sync.Mutex
	next atomic.Pointer[map[step]*Plan]
}

// step is a plan and a rule that is added to it.
type step struct {
	plan *Plan
	rule *Rule
}

// with returns the plan that has one more shadow rule than p.
func (s *plans) with(p *Plan, t *try) *Plan {
	if p == nil {
		return t.plan
	}
	at := step{p, t.rule}
	if known := s.next.Load(); known != nil && (*known)[at] != nil {
		return (*known)[at]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := map[step]*Plan{}
	if known := s.next.Load(); known != nil && len(*known) < maxPlans {
		next = maps.Clone(*known)
	}
	if next[at] == nil {
		next[at] = newPlan(p.Live, append(slices.Clip(p.Shadows), t.rule))
		s.next.Store(&next)
	}
	return next[at]
}
