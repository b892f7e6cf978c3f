package windows

import (
	"slices"
	"sync/atomic"

	"github.com/streamcounter/streamcounter/lua"
)

// scriptPlan is what the library is told about some rules of a plan. It differs from period to period where a
// window counts in periods.
type scriptPlan struct {
	rules  []*Rule // the one that decides is the first
	meters []scriptMeter
	ids    []int64 // of windows that count in periods: which of them; 0 of others
	// settled: a log is trimmed, and its expiry renewed, once in an eighth of its longest window. If not,
	// that is done at each write.
	settled bool
	fixed   *lua.Plan // nil where a window counts in periods
	now     atomic.Pointer[periodPlan]
}

// periodPlan holds from from on, in ms, until to.
type periodPlan struct {
	from, to int64
	plan     *lua.Plan
}

// scriptMeter is what one algorithm counts.
type scriptMeter struct {
	form, algorithm string
	buckets         int64
	spanMs          int64   // how long it keeps what it counts
	windowMs        int64   // the longest of its windows
	windows         []int   // among those of all rules
	value           valueOf // what it counts the values of
	keep            int64   // how many values it keeps
	publish         int     // how many of them go with a transition
}

func (m scriptMeter) setting(settled bool) int64 {
	switch {
	case m.algorithm == SlidingBuckets:
		return m.buckets
	case m.algorithm == lua.Distinct:
		return m.keep
	case settled:
		return max(1, m.spanMs/8)
	}
	return 0
}

func newScriptPlan(rules []*Rule, meters []scriptMeter, ids []int64, settled bool) *scriptPlan {
	c := &scriptPlan{rules: rules, meters: meters, ids: ids, settled: settled}
	if !slices.ContainsFunc(ids, func(id int64) bool { return id > 0 }) {
		c.fixed = c.compile(0).plan
	}
	return c
}

// at gives the plan as it is at a moment by the clock of Redis.
func (c *scriptPlan) at(nowMs int64) *lua.Plan {
	if c.fixed != nil {
		return c.fixed
	}
	p := c.now.Load()
	if p == nil || nowMs < p.from || nowMs >= p.to {
		p = c.compile(nowMs)
		c.now.Store(p)
	}
	return p.plan
}

func (c *scriptPlan) spanMs() int64 {
	ms := int64(1)
	for _, r := range c.rules {
		ms = max(ms, r.Longest().Milliseconds())
	}
	return ms
}

// compile turns the rules into what the library is told in the periods that hold a moment.
func (c *scriptPlan) compile(nowMs int64) *periodPlan {
	p := &periodPlan{to: 1<<63 - 1, plan: &lua.Plan{}}
	n := 0
	for _, r := range c.rules {
		rule := lua.Rule{Name: r.Name, Algorithm: r.countedBy(), HoldMs: r.Hold.Milliseconds(), Shadow: r.Shadow}
		for _, w := range r.Windows {
			window := lua.Window{Ms: w.Per.Milliseconds(), Limit: w.Limit, InFlight: w.InFlight, Steps: r.steps(w)}
			if window.ID = c.ids[n]; window.ID > 0 {
				from, to := w.period()(nowMs)
				window.Ms, window.FromMs = to-from, from
				p.from, p.to = max(p.from, from), min(p.to, to)
			}
			rule.Windows = append(rule.Windows, window)
			n++
		}
		p.plan.Rules = append(p.plan.Rules, rule)
	}
	for _, m := range c.meters {
		meter := lua.Meter{Algorithm: m.algorithm, Setting: m.setting(c.settled), SpanMs: m.spanMs}
		for _, w := range m.windows {
			meter.Windows = append(meter.Windows, w+1)
		}
		if m.publish > 0 {
			meter.More = lua.DistinctOf{Publish: m.publish, Field: m.value.field}
		}
		for _, o := range c.rules[0].meterOptions() {
			if o.algorithm == m.algorithm {
				o.tell(c.rules[0], &meter)
			}
		}
		p.plan.Meters = append(p.plan.Meters, meter)
	}
	return p
}
