package windows

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/inprocess"
	"github.com/streamcounter/streamcounter/lua"
)

// MaxShadows is how many shadow rules are evaluated for one key: the first of
// those that match, in file order. It bounds what a check and a fold cost.
const MaxShadows = 8

// Plan is what is evaluated for a key: the rule that decides, and beside it the
// shadow rules that match, on the same count. It is compiled to counters, one per
// form of state in Redis, each with a list of windows, and each window belongs to
// one of the rules: rules of one algorithm share a counter. Where one of them mixes algorithms
// there is one counter for all, with a part per form. What a plan says never changes.
// Rules.Match gives them, and PlanOf one of a rule alone.
type Plan struct {
	// Live decides; nil where only shadow rules match. Then nothing is denied.
	Live *Rule
	// Shadows are evaluated and published and never decide; in file order.
	Shadows []*Rule

	rules    []*Rule // Live and Shadows
	counters []planCounter
	places   []place // rule, as in Rules() → where its windows stand
	// resolutionMs is how far apart events of one key may lie and still share an
	// entry: as the rule with the shortest window has it.
	resolutionMs int64
	// quick is the algorithm whose script for the common check may be asked; none where there are shadows, or no
	// such script.
	quick string
	// quickLease: the same of the common renewal of a lease.
	quickLease bool
	// quickFold: the same of the common fold.
	quickFold bool
	lease     time.Duration // see LeaseTime
	carry     planCarry

	mu    sync.Mutex
	moved map[[2]string]*Plan // algorithms, from and to → the plan with the other one

	// Of a plan that an override made: written is the one before, which may be nil. exempt is the rule
	// that would decide, where nothing is denied.
	written *Plan
	exempt  *Rule
	kept    map[string]int64 // form of a part → for how long it keeps at least what it counts, in ms
}

// planCounter is one counter of a key.
type planCounter struct {
	form string // its word in the name of the counter
	// A counter's expiry is renewed once per everyMs, an eighth of its longest
	// window. In the first such eighth after a change of the rules it is renewed at
	// each write (fresh), as a counter that was written under a shorter window would
	// end too early.
	fresh, settled *scriptRule
	everyMs        int64
}

// place says which windows are a rule's: those of counters[counter] from `from` on.
type place struct {
	counter, from int
	// alone is the rule without the others of its counter, for who only reads, and form that of its counter.
	alone     *scriptRule
	form      string
	inProcess inprocess.Rule
}

// PlanOf is the plan of a rule by itself.
func PlanOf(r *Rule) *Plan {
	if r.Shadow {
		return newPlan(nil, []*Rule{r})
	}
	return newPlan(r, nil)
}

func newPlan(live *Rule, shadows []*Rule) *Plan { return newPlanThatKeeps(live, shadows, nil) }

// newPlanThatKeeps makes one whose counters keep what they count for some time at least: kept has it in ms,
// by the form of a part.
func newPlanThatKeeps(live *Rule, shadows []*Rule, kept map[string]int64) *Plan {
	p := &Plan{Live: live, Shadows: shadows, rules: shadows, kept: kept}
	if live != nil {
		p.rules = append([]*Rule{live}, shadows...)
	}
	p.lease = p.leaseTime()
	p.places = make([]place, len(p.Rules()))
	for c, members := range p.members() {
		var rules []*Rule
		from := 0
		for _, i := range members {
			r := p.rules[i]
			rules = append(rules, r)
			p.places[i] = place{counter: c, from: from, inProcess: r.inProcess()}
			from += len(r.Windows)
		}
		p.counters = append(p.counters, p.newCounter(rules))
		for _, i := range members {
			at, one := &p.places[i], p.counters[c]
			if len(members) > 1 {
				one = p.newCounter([]*Rule{p.rules[i]})
			}
			at.alone, at.form = one.fresh, one.form
		}
	}
	for _, r := range p.Rules() {
		if ms := r.Resolution().Milliseconds(); p.resolutionMs == 0 || ms < p.resolutionMs {
			p.resolutionMs = ms
		}
	}
	if first := p.counters[0].fresh; live != nil && len(shadows) == 0 && live.InFlight() == 0 && first.fixed != nil {
		algorithm := first.fixed.Algorithm
		if lua.HasQuick(algorithm) {
			p.quick = algorithm
		}
		p.quickLease = lua.HasQuickLease(algorithm) && live.shortest() >= time.Second // quick-lease-sliding-log.lua
		p.quickFold = lua.HasQuickFold(algorithm)
	}
	p.setCarry()
	return p
}

// members gives the rules of each counter, by their place in Rules: those of one form, or all where one
// of them mixes several.
func (p *Plan) members() (members [][]int) {
	var forms []string
	for i, r := range p.Rules() {
		parts := p.partsOf([]*Rule{r})
		if len(parts) > 1 {
			members = [][]int{{}}
			for i := range p.Rules() {
				members[0] = append(members[0], i)
			}
			return members
		}
		c := slices.Index(forms, parts[0].form)
		if c < 0 {
			c = len(forms)
			forms, members = append(forms, parts[0].form), append(members, nil)
		}
		members[c] = append(members[c], i)
	}
	return members
}

// partsOf gives what each algorithm counts of some rules of the plan.
func (p *Plan) partsOf(rules []*Rule) (parts []scriptPart) {
	add := func(r *Rule, algorithm string) *scriptPart {
		form := p.formFor(r, algorithm)
		i := slices.IndexFunc(parts, func(s scriptPart) bool { return s.form == form })
		if i < 0 {
			i = len(parts)
			parts = append(parts, scriptPart{form: form, algorithm: algorithm, buckets: r.Buckets,
				spanMs: max(1, p.kept[form])})
		}
		return &parts[i]
	}
	window := 0
	for _, r := range rules {
		for _, w := range r.Windows {
			if a := r.algorithmOf(w); a != "" {
				part := add(r, a)
				part.windows, part.spanMs = append(part.windows, window), max(part.spanMs, w.Per.Milliseconds())
			}
			window++
		}
		if r.punishes() {
			add(r, lua.Penalty)
		}
		if !r.charges() {
			part := add(r, r.Algorithm)
			part.spanMs = max(part.spanMs, r.Longest().Milliseconds())
		}
	}
	return parts
}

// formFor gives the form of the counter of an algorithm that a rule takes. Buckets of two sizes do
// not fit into one counter: the first rule has the form's name, another its own.
func (p *Plan) formFor(r *Rule, algorithm string) string {
	form := lua.Form(algorithm)
	if algorithm != SlidingBuckets {
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

// newCounter gives the counter that rules of the plan share.
func (p *Plan) newCounter(rules []*Rule) planCounter {
	parts, ids := p.partsOf(rules), p.calendarIDs(rules)
	forms := make([]string, len(parts))
	for i, part := range parts {
		forms[i] = part.form
	}
	c := planCounter{form: lua.MixedForm(forms), fresh: newScriptRule(rules, parts, ids, false)}
	c.settled, c.everyMs = c.fresh, max(1, c.fresh.spanMs()/8)
	if !rules[0].Unlevelled {
		c.settled = newScriptRule(rules, parts, ids, true)
	}
	return c
}

// calendarIDs gives which of the calendar's windows those of some rules are, one number per window: 0
// for another. They are numbered over all rules of the plan.
func (p *Plan) calendarIDs(rules []*Rule) []int64 {
	seen, ids := map[int]int64{}, map[*Rule][]int64{}
	for _, r := range p.Rules() {
		for _, w := range r.Windows {
			id := int64(0)
			if unit := w.Calendar.unit(); unit > 0 {
				id = int64(unit)*100 + seen[unit]
				seen[unit]++
			}
			ids[r] = append(ids[r], id)
		}
	}
	var out []int64
	for _, r := range rules {
		out = append(out, ids[r]...)
	}
	return out
}

// Rules gives the rules of the plan, the one that decides first, if there is one. A
// nil plan has none. Not to be changed.
func (p *Plan) Rules() []*Rule {
	if p == nil {
		return nil
	}
	return p.rules
}

// state puts together what the plan's counters say of a key: one result each, in
// their order.
func (p *Plan) state(counters []lua.CheckResult) KeyState {
	s := newKeyState(counters[0].NowMs)
	for _, c := range counters {
		s.RetryAfter = longer(s.RetryAfter, c.RetryMs)
	}
	for i, r := range p.Rules() {
		at, c := p.places[i], counters[p.places[i].counter]
		var wait time.Duration
		if c.ShadowMs != nil && r != p.Live {
			first := at.from - (len(c.Windows) - len(c.ShadowMs))
			for _, ms := range c.ShadowMs[first : first+len(r.Windows)] {
				wait = longer(wait, ms)
			}
		}
		s.add(r == p.Live, r.states(c.NowMs, c.Windows[at.from:at.from+len(r.Windows)]), wait)
	}
	return s
}

// parts gives what each algorithm counts of the plan.
func (p *Plan) parts() iter.Seq[scriptPart] {
	return func(yield func(scriptPart) bool) {
		for i := range p.counters {
			for _, part := range p.counters[i].fresh.parts {
				if !yield(part) {
					return
				}
			}
		}
	}
}

// has tells whether one of the counter's parts has this form.
func (c *planCounter) has(form string) bool {
	return slices.ContainsFunc(c.fresh.parts, func(p scriptPart) bool { return p.form == form })
}

// states gives what the scripts say of the rule's windows.
func (r *Rule) states(nowMs int64, list []lua.WindowState) []api.WindowState {
	out := make([]api.WindowState, len(list))
	for i, u := range list {
		var nextFree, reset time.Duration
		if u.Used > 0 {
			nextFree = time.Duration(u.NextFreeMs-nowMs) * time.Millisecond
			reset = time.Duration(u.ResetMs-nowMs) * time.Millisecond
		}
		length := time.Duration(r.Windows[i].lengthMs(nowMs)) * time.Millisecond
		out[i] = api.NewWindowState(r.Windows[i].Limit, length, u.Used, nextFree, reset)
		out[i].Calendar = r.Windows[i].Calendar.Unit
	}
	return out
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
