package windows

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/streamcounter/streamcounter/lua"
)

// scriptPlan is the plan that the library receives for some rules of a plan. It differs from period to period if a
// window counts in periods.
type scriptPlan struct {
	rules  []*Rule // the one that decides is the first
	of     []lua.Rule
	meters []meter
	forms  []string // of the meters: parts of the names of keys
	now    atomic.Pointer[periodPlan]
}

// periodPlan is valid from `from` until before `to`, in ms.
type periodPlan struct {
	from, to int64
	plan     *lua.Plan
}

// meter is the meter of one algorithm.
type meter struct {
	lua.Meter
	form     string
	windowMs int64   // the longest of its windows
	value    valueOf // the field whose values it counts
}

// scriptRules returns the rules of a plan for the library, without the periods of their windows.
func scriptRules(rules []*Rule) (list []lua.Rule) {
	for _, r := range rules {
		rule := lua.Rule{Name: r.Name, Algorithm: r.countedBy(), HoldMs: r.Hold.Milliseconds(), Shadow: r.Shadow}
		for _, w := range r.Windows {
			rule.Windows = append(rule.Windows, lua.Window{Ms: w.Per.Milliseconds(), Limit: w.Limit,
				InFlight: w.InFlight, Steps: r.steps(w), ID: w.periodID()})
		}
		list = append(list, rule)
	}
	return list
}

// script returns the plan for the library of some rules of p; `of` are the same rules in the library's form. periodic:
// a log is trimmed, and its expiry renewed, once per eighth of its longest window; otherwise at each write.
func (p *Plan) script(rules []*Rule, of []lua.Rule, periodic bool) *scriptPlan {
	c := &scriptPlan{rules: rules, of: of}
	meterOf := func(r *Rule, form, algorithm string) *meter {
		i := slices.Index(c.forms, form)
		if i < 0 {
			i = len(c.forms)
			one := meter{form: form, Meter: lua.Meter{Algorithm: algorithm, SpanMs: max(1, p.kept[form])}}
			if algorithm == SlidingBuckets {
				one.Setting = r.Buckets
			}
			c.meters, c.forms = append(c.meters, one), append(c.forms, form)
		}
		return &c.meters[i]
	}
	window := 0
	for _, r := range rules {
		for _, w := range r.Windows {
			window++
			if a := r.AlgorithmOf(w); a != "" {
				m, ms := meterOf(r, p.formFor(r, w), a), w.Per.Milliseconds()
				m.Windows, m.SpanMs, m.windowMs = append(m.Windows, window), max(m.SpanMs, ms), max(m.windowMs, ms)
				if a == lua.Distinct {
					m.addValues(w)
				}
			}
		}
		for _, o := range r.meterOptions() {
			o.configure(r, &meterOf(r, o.algorithm, o.algorithm).Meter)
		}
		if !r.Charges() {
			m := meterOf(r, p.formFor(r, Window{}), r.Algorithm)
			m.SpanMs = max(m.SpanMs, r.Longest().Milliseconds())
		}
	}
	for i := range c.meters {
		if m := &c.meters[i]; periodic && m.Algorithm != SlidingBuckets && m.Algorithm != lua.Distinct {
			m.Setting = max(1, m.SpanMs/8)
		}
	}
	c.now.Store(c.compile(0))
	return c
}

// scriptAlone returns the plan for sweeps of one rule, or of none. Unless the rule is a shadow, the plan has the meters
// of all options. If the rule does not have an option, its meter has no settings: a sweep then ends its effect.
func (p *Plan) scriptAlone(rules []*Rule, of []lua.Rule) *scriptPlan {
	c := p.script(rules, of, false)
	for _, o := range options {
		if o.has != nil && !slices.Contains(c.forms, o.algorithm) && (len(rules) == 0 || !rules[0].Shadow) {
			c.meters = append(c.meters, meter{form: o.algorithm, Meter: lua.Meter{Algorithm: o.algorithm, SpanMs: 1}})
			c.forms = append(c.forms, o.algorithm)
		}
	}
	c.now.Store(c.compile(0))
	return c
}

// addValues adds a window to a meter that counts values.
func (m *meter) addValues(w Window) {
	m.value, m.Setting = w.valueOf(), max(m.Setting, w.Limit+1)
	if before, _ := m.More.(lua.DistinctOf); w.PublishValues > before.Publish {
		m.More = lua.DistinctOf{Publish: w.PublishValues, Field: w.Distinct}
	}
}

// at returns the plan as of nowMs, by the clock of Redis.
func (c *scriptPlan) at(nowMs int64) *lua.Plan {
	p := c.now.Load()
	if nowMs < p.from || nowMs >= p.to {
		p = c.compile(nowMs)
		c.now.Store(p)
	}
	return p.plan
}

// compile returns the plan for the library, in the periods that contain nowMs.
func (c *scriptPlan) compile(nowMs int64) *periodPlan {
	p := &periodPlan{math.MinInt64, math.MaxInt64, &lua.Plan{Rules: slices.Clone(c.of)}}
	for i, r := range c.rules {
		list := slices.Clone(c.of[i].Windows)
		for j, w := range r.Windows {
			if period := w.period(); period != nil {
				from, to := period(nowMs)
				_, next := period(to)
				list[j].Ms, list[j].FromMs, list[j].NextMs = to-from, from, next-to
				p.from, p.to = max(p.from, from), min(p.to, to)
			}
		}
		p.plan.Rules[i].Windows = list
	}
	for _, m := range c.meters {
		p.plan.Meters = append(p.plan.Meters, m.Meter)
	}
	return p
}
