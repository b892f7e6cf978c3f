package windows

import (
	"fmt"
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
// one of the rules: rules of one algorithm share a counter. A plan never changes.
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
	// quick: there are no shadows, and the rule's algorithm has a script for the common check.
	quick bool
	carry planCarry
}

// planCounter is one counter of a key.
type planCounter struct {
	form string // its word in the name of the counter
	// A counter's expiry is renewed once per everyMs, an eighth of its longest
	// window. In the first such eighth after a change of the rules it is renewed at
	// each write (fresh), as a counter that was written under a shorter window would
	// end too early.
	fresh, settled *lua.Rule
	everyMs        int64
}

// place says which windows are a rule's: those of counters[counter] from `from` on.
type place struct {
	counter, from int
	alone         *lua.Rule // the rule without the others of its counter, for who only reads
	inProcess     inprocess.Rule
}

// PlanOf is the plan of a rule by itself.
func PlanOf(r *Rule) *Plan {
	if r.Shadow {
		return newPlan(nil, []*Rule{r})
	}
	return newPlan(r, nil)
}

func newPlan(live *Rule, shadows []*Rule) *Plan {
	p := &Plan{Live: live, Shadows: shadows, rules: shadows}
	if live != nil {
		p.rules = append([]*Rule{live}, shadows...)
		p.quick = len(shadows) == 0 && lua.HasQuick(live.Algorithm)
	}
	var members [][]*Rule // counter → its rules
	for _, r := range p.Rules() {
		form := p.formFor(r)
		c := slices.IndexFunc(p.counters, func(c planCounter) bool { return c.form == form })
		if c < 0 {
			c = len(p.counters)
			p.counters, members = append(p.counters, planCounter{form: form}), append(members, nil)
		}
		from := 0
		for _, m := range members[c] {
			from += len(m.Windows)
		}
		members[c] = append(members[c], r)
		p.places = append(p.places, place{counter: c, from: from, inProcess: r.inProcess()})
		if ms := r.Resolution().Milliseconds(); p.resolutionMs == 0 || ms < p.resolutionMs {
			p.resolutionMs = ms
		}
	}
	for i := range p.counters {
		p.counters[i].compile(members[i])
	}
	p.setCarry()
	for i, r := range p.Rules() {
		c := p.places[i].counter
		p.places[i].alone = p.counters[c].fresh
		if len(members[c]) > 1 {
			p.places[i].alone = compile([]*Rule{r}, 0)
		}
	}
	return p
}

// formFor gives the form of the counter that a rule takes. Buckets of two sizes do
// not fit into one counter: the first rule has the form's name, another its own.
func (p *Plan) formFor(r *Rule) string {
	form := lua.Form(r.Algorithm)
	for _, first := range p.Rules() {
		if first.Algorithm == r.Algorithm {
			if first.Buckets != r.Buckets {
				return fmt.Sprint(form, r.Buckets)
			}
			break
		}
	}
	return form
}

func (c *planCounter) compile(rules []*Rule) {
	c.fresh = compile(rules, 0)
	c.settled, c.everyMs = c.fresh, max(1, c.fresh.SpanMs/8)
	if !rules[0].Unlevelled {
		c.settled = compile(rules, c.everyMs)
	}
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

// states gives what the scripts say of the rule's windows.
func (r *Rule) states(nowMs int64, list []lua.WindowState) []api.WindowState {
	out := make([]api.WindowState, len(list))
	for i, u := range list {
		var nextFree, reset time.Duration
		if u.Used > 0 {
			nextFree = time.Duration(u.NextFreeMs-nowMs) * time.Millisecond
			reset = time.Duration(u.ResetMs-nowMs) * time.Millisecond
		}
		out[i] = api.NewWindowState(r.Windows[i].Limit, r.Windows[i].Per, u.Used, nextFree, reset)
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
