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

// MaxShadows is how many shadow rules are evaluated for one key: the first of
// those that match, in file order. It bounds what a check and a fold cost.
const MaxShadows = 8

// Plan is what is evaluated for a key: the rule that decides, and beside it the
// shadow rules that match, on the same count. It is compiled to meters: each is one key in Redis, in which
// one algorithm counts the windows that name it, of whichever rule. What a plan says never changes.
// Rules.Match gives them, and PlanOf one of a rule alone.
type Plan struct {
	// Live decides; nil where only shadow rules match. Then nothing is denied.
	Live *Rule
	// Shadows are evaluated and published and never decide; in file order.
	Shadows []*Rule

	rules  []*Rule  // Live and Shadows
	forms  []string // of the meters: their words in the names of keys
	places []place  // rule, as in Rules() → where its windows stand
	// What the library is told. A meter's expiry is renewed once per everyMs, an eighth of its longest
	// window. In the first such eighth after a change of the rules it is renewed at
	// each write (fresh), as one that was written under a shorter window would
	// end too early.
	fresh, settled *scriptPlan
	everyMs        int64
	// resolutionMs is how far apart events of one key may lie and still share an
	// entry: as the rule with the shortest window has it.
	resolutionMs int64
	lease        time.Duration // see LeaseTime

	replacement
	values []valueOf        // that its meters count, in their order
	local  []inprocess.Rule // its rules, for a process that counts alone
	kept   map[string]int64 // form of a meter → for how long it keeps at least what it counts, in ms
}

// place says where a rule's windows begin among those of the plan.
type place struct {
	from int
	// alone is the rule without the others of its plan, for who only reads, and forms those of its meters.
	alone *scriptPlan
	forms []string
}

// PlanOf is the plan of a rule by itself.
func PlanOf(r *Rule) *Plan {
	if r.Shadow {
		return newPlan(nil, []*Rule{r})
	}
	return newPlan(r, nil)
}

func newPlan(live *Rule, shadows []*Rule) *Plan { return newPlanThatKeeps(live, shadows, nil) }

// newPlanThatKeeps makes one whose meters keep what they count for some time at least: kept has it in ms,
// by their form.
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

// Forms gives the forms of the plan's meters: their words in the names of keys. Not to be changed.
func (p *Plan) Forms() []string { return p.forms }

// Script gives what the library is told of the plan at a moment by the clock of Redis, the rules being what they are
// for sinceMs.
func (p *Plan) Script(sinceMs, clockMs int64) *lua.Plan {
	if sinceMs < p.everyMs {
		return p.fresh.at(clockMs)
	}
	return p.settled.at(clockMs)
}

// Alone is Script and Forms of one of Rules by itself.
func (p *Plan) Alone(rule int, clockMs int64) (script *lua.Plan, forms []string) {
	at := p.places[rule]
	return at.alone.at(clockMs), at.forms
}

// ResolutionMs is how far apart events of one key may lie and still share an entry.
func (p *Plan) ResolutionMs() int64 { return p.resolutionMs }

// InProcess gives Rules as a process counts them by itself. Not to be changed.
func (p *Plan) InProcess() []inprocess.Rule { return p.local }

// script gives what the library is told about rules of the plan, and the forms of their meters.
func (p *Plan) script(rules []*Rule, settled bool) (script *scriptPlan, forms []string) {
	meters := p.metersOf(rules)
	for _, m := range meters {
		forms = append(forms, m.form)
	}
	return newScriptPlan(rules, meters, p.periodIDs(rules), settled), forms
}

// metersOf gives what each algorithm counts of some rules of the plan.
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

// formFor gives the form of the meter that counts a window of a rule. Buckets of two sizes do
// not fit into one meter: the first rule has the form's name, another its own.
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

// Rules gives the rules of the plan, the one that decides first, if there is one. A
// nil plan has none. Not to be changed.
func (p *Plan) Rules() []*Rule {
	if p == nil {
		return nil
	}
	return p.rules
}

// Name is that of the rule that decides; empty where there is none.
func (p *Plan) Name() string {
	if p.Live == nil {
		return ""
	}
	return p.Live.Name
}

func (p *Plan) exclusive() bool { return p.Live == nil && p.Shadows[0].Exclusive }

// maxPlans bounds the combinations of rules that are remembered. There are far
// fewer, unless shadow rules overlap in every way and keys make use of it.
const maxPlans = 4096

// plans makes the plans of several rules, each once.
type plans struct {
	mu   sync.Mutex
	next atomic.Pointer[map[step]*Plan]
}

// step is a plan, nil for none, and a rule that comes to it.
type step struct {
	plan *Plan
	rule *Rule
}

// with gives the plan that has a shadow rule besides those of p.
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
