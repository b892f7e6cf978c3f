package windows

import (
	"slices"
	"sync/atomic"

	"github.com/streamcounter/streamcounter/lua"
)

// scriptPlan makes the plan that the library receives for some rules of a plan. It differs from period to period if a
// window counts in periods.
type scriptPlan struct {
	rules  []*Rule // the one that decides is the first
	meters []scriptMeter
	ids    []int64 // window → its id if it counts in periods, otherwise 0
	// settled: a log is trimmed, and its expiry renewed, once in an eighth of its longest window. If it is false,
	// that is done at each write.
	settled bool
	fixed   *lua.Plan // nil if a window counts in periods
	now     atomic.Pointer[periodPlan]
}

// periodPlan is valid from `from` until before `to`, in ms.
type periodPlan struct {
	from, to int64
	plan     *lua.Plan
}

// scriptMeter is the meter of one algorithm.
type scriptMeter struct {
	form, algorithm string
	buckets         int64
	spanMs          int64   // how long it keeps what it counts
	windowMs        int64   // the longest of its windows
	windows         []int   // their places among the windows of all rules
	value           valueOf // the field whose values it counts
	keep            int64   // how many values it keeps
	publish         int     // how many of them a transition has
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

// at returns the plan as of nowMs, by the clock of Redis.
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

// compile returns the plan for the library, in the periods that contain nowMs.
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
