package windows

import (
	"slices"
	"sync/atomic"

	"github.com/streamcounter/streamcounter/lua"
)

// scriptRule is what a counter counts, as the scripts receive it: the windows of one rule or of
// several. It differs from period to period where one of them is of the calendar.
type scriptRule struct {
	rules []*Rule // the one that decides is the first
	parts []scriptPart
	ids   []int64 // of windows of the calendar: which of them; 0 of others
	// settled: a log is trimmed, and its expiry renewed, once in an eighth of its longest window. If not,
	// that is done at each write.
	settled bool
	fixed   *lua.Rule // nil where a window is of the calendar
	now     atomic.Pointer[periodRule]
}

// periodRule holds from from on, in ms, until to.
type periodRule struct {
	from, to int64
	rule     *lua.Rule
}

// scriptPart is what one algorithm counts: all windows of a rule but those in flight, or those that are
// its own.
type scriptPart struct {
	form, algorithm string
	buckets         int64
	spanMs          int64 // the longest of its windows
	windows         []int // among those of all rules
}

func (p scriptPart) setting(settled bool) int64 {
	switch {
	case p.algorithm == SlidingBuckets:
		return p.buckets
	case settled:
		return max(1, p.spanMs/8)
	}
	return 0
}

func newScriptRule(rules []*Rule, parts []scriptPart, ids []int64, settled bool) *scriptRule {
	c := &scriptRule{rules: rules, parts: parts, ids: ids, settled: settled}
	if !slices.ContainsFunc(ids, func(id int64) bool { return id > 0 }) {
		c.fixed = c.compile(0).rule
	}
	return c
}

// at gives the rule as it is at a moment by the clock of Redis.
func (c *scriptRule) at(nowMs int64) *lua.Rule {
	if c.fixed != nil {
		return c.fixed
	}
	p := c.now.Load()
	if p == nil || nowMs < p.from || nowMs >= p.to {
		p = c.compile(nowMs)
		c.now.Store(p)
	}
	return p.rule
}

func (c *scriptRule) spanMs() int64 {
	ms := int64(1)
	for _, r := range c.rules {
		ms = max(ms, r.Longest().Milliseconds())
	}
	return ms
}

// compile turns the rules into what the scripts receive in the periods that hold a moment.
func (c *scriptRule) compile(nowMs int64) *periodRule {
	p := &periodRule{to: 1<<63 - 1, rule: &lua.Rule{Algorithm: lua.Mixed, SpanMs: c.spanMs()}}
	out := p.rule
	var spec []byte
	for i, r := range c.rules {
		first := len(out.Windows)
		for _, w := range r.Windows {
			window := lua.Window{Ms: w.Per.Milliseconds(), Limit: w.Limit, Lowest: r.lowest(w), InFlight: w.InFlight}
			if window.ID = c.ids[len(out.Windows)]; window.ID > 0 {
				from, to := w.Calendar.Period(nowMs)
				window.Ms, window.FromMs = to-from, from
				p.from, p.to = max(p.from, from), min(p.to, to)
			}
			out.Windows = append(out.Windows, window)
		}
		if !r.Shadow {
			out.Decides = len(out.Windows)
		}
		if i > 0 {
			spec = append(spec, '\n')
		}
		spec = r.appendLevels(spec, out.Windows[first:])
	}
	out.Spec = string(spec)
	if len(c.parts) == 1 {
		out.Algorithm, out.Setting = c.parts[0].algorithm, c.parts[0].setting(c.settled)
		out.SpanMs = max(out.SpanMs, c.parts[0].spanMs)
		return p
	}
	if r := c.rules[0]; r.punishes() {
		out.ForgetMs = r.Forget.Milliseconds()
		for _, d := range r.Penalty {
			out.Penalties = append(out.Penalties, d.Milliseconds())
		}
	}
	for _, part := range c.parts {
		out.Parts = append(out.Parts, lua.Part{Algorithm: part.algorithm, Setting: part.setting(c.settled),
			SpanMs: part.spanMs, Windows: part.windows})
	}
	return p
}

// part gives the rule of one part by itself, as if it were all that is counted.
func (c *scriptRule) part(i int) *lua.Rule {
	if len(c.parts) == 1 && c.fixed != nil {
		return c.fixed
	}
	all, part := c.at(0), c.parts[i]
	out := &lua.Rule{Algorithm: part.algorithm, Setting: part.setting(c.settled), SpanMs: part.spanMs,
		Spec: all.Spec}
	for _, w := range part.windows {
		out.Windows = append(out.Windows, all.Windows[w])
	}
	return out
}
