package windows

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/overrides"
)

// With gives the same rules under overrides: Match then gives what these say of a key, at
// every moment.
func (r *Rules) With(o *overrides.All) *Rules {
	c := *r
	c.overrides = o
	return &c
}

// nameOfBlocks is the name of the decisions of blocks, which no rule can have.
const nameOfBlocks = api.OverrideRule

// under is what rules have of overrides.
type under struct {
	overrides *overrides.All // nil: none (With)
	changed   *changedPlans
}

func newUnder() under { return under{changed: &changedPlans{}} }

// replacement is what a plan has of the override that made it.
type replacement struct {
	written *Plan // the one before, which may be nil
	exempt  *Rule // the rule that would decide, where nothing is denied
}

// Written gives the plan of a key as the rules alone have it.
func (r *Rules) Written(key string) *Plan { return r.match(key) }

// Written gives the plan that an override has changed to this one, which may be nil; without an override it is this
// one.
func (p *Plan) Written() *Plan {
	if p == nil || p.written == nil {
		return p
	}
	return p.written
}

// Lasting is Match, and until when a key is known to have the plan: as long as Version is this one. lasts is false
// where an override made the plan, which may end.
func (r *Rules) Lasting(key string) (plan *Plan, version uint64, lasts bool) {
	version, lasts = r.Version(), r.overrides.Find(key) == nil // in this order: either may change
	return r.Match(key), version, lasts
}

// ClockMs is the clock of the server of a partition in ms since 1970, as far as the process knows it; it compares
// clocks where the rules are under overrides.
func (r *Rules) ClockMs(p int) int64 {
	if r.overrides == nil {
		return time.Now().UnixMilli()
	}
	return r.overrides.Clock(p)
}

// Version changes with each change of an override.
func (r *Rules) Version() uint64 { return r.overrides.Changes() }

// Overrides gives those of With; nil where there are none.
func (r *Rules) Overrides() *overrides.All { return r.overrides }

// Under gives rules under overrides, for who asks for the present rules each time.
func Under(o *overrides.All, rules func() *Rules) func() *Rules {
	type pair struct{ of, under *Rules }
	var last atomic.Pointer[pair]
	return func() *Rules {
		of := rules()
		if p := last.Load(); p != nil && p.of == of {
			return p.under
		}
		p := &pair{of, of.With(o)}
		last.Store(p)
		return p.under
	}
}

// Apply gives the plan that a key has under an override, which is in effect, in place of a plan of
// these rules; and the override, nil where there is none. It may be applied again. A block leaves the
// plan as it is: events still count under it.
func (r *Rules) Apply(plan *Plan, key string) (*Plan, *overrides.Override) {
	if r.overrides == nil {
		return plan, nil
	}
	o := r.overrides.Find(key)
	if o == nil {
		return plan, nil
	}
	if plan != nil && plan.written != nil {
		plan = plan.written
	}
	return r.changed.under(r, plan, o), o
}

// changedPlans are the plans that overrides make of others, each once.
type changedPlans struct {
	mu    sync.RWMutex
	plans map[changedPlan]*Plan
}

type changedPlan struct {
	plan   *Plan
	effect unique.Handle[overrides.Effect]
}

// under gives the plan that an override makes of another, which may be nil.
func (c *changedPlans) under(r *Rules, plan *Plan, o *overrides.Override) *Plan {
	at := changedPlan{plan, o.Effect()}
	c.mu.RLock()
	known, ok := c.plans[at]
	c.mu.RUnlock()
	if ok {
		return known
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok = c.plans[at]; ok {
		return known
	}
	if c.plans == nil || len(c.plans) >= maxPlans {
		c.plans = map[changedPlan]*Plan{}
	}
	known = r.change(plan, o.Effect().Value())
	c.plans[at] = known
	return known
}

// change makes of a plan what an override says. What cannot be said of it leaves it as it is: a
// tier that this process's rules do not have, windows where no rule decides.
func (r *Rules) change(plan *Plan, e overrides.Effect) *Plan {
	var live *Rule
	var shadows []*Rule
	if plan != nil {
		live, shadows = plan.Live, plan.Shadows
	}
	// What is counted meanwhile is kept for as long as without the override: it may end.
	kept := map[string]int64{}
	if plan != nil {
		for _, m := range plan.fresh.meters {
			kept[m.form] = m.spanMs
		}
	}
	var out *Plan
	switch {
	case e.Exempt && live != nil:
		exempt := *live
		exempt.Shadow, exempt.Unlevelled = true, true
		out = newPlanThatKeeps(nil, slices.Concat([]*Rule{&exempt}, shadows), kept)
		out.exempt = live
	case e.Rule != "":
		tier := r.named[e.Rule]
		if tier == nil || tier.Shadow {
			return plan
		}
		out = newPlanThatKeeps(tier, shadows, kept)
	case e.HasWindows() && live != nil:
		list, err := readOverrideWindows(e.Windows())
		other, _ := live.withWindows(list, e.Only)
		if err != nil || other.validateWindows() != nil {
			return plan
		}
		out = newPlanThatKeeps(other, shadows, kept)
	default:
		return plan
	}
	out.written = plan
	if plan != nil {
		out.keepLonger(plan)
	}
	return out
}

// keepLonger has the expiry of meters renewed at each write where they are kept longer than the
// plan before has them kept: who wrote last may have had that one.
func (p *Plan) keepLonger(before *Plan) {
	for _, mine := range p.fresh.meters {
		for _, m := range before.fresh.meters {
			if m.form == mine.form && m.spanMs < mine.spanMs {
				p.settled = p.fresh
			}
		}
	}
}

// Exempt is the rule that would decide, where an override admits every check of the key; else nil.
func (p *Plan) Exempt() *Rule {
	if p == nil {
		return nil
	}
	return p.exempt
}
