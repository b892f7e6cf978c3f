package windows

import (
	"slices"
	"sync"
	"unique"
)

// With gives the same rules under overrides: Match then gives what these say of a key, at
// every moment.
func (r *Rules) With(o *Overrides) *Rules {
	c := *r
	c.overrides = o
	return &c
}

// Written gives the plan of a key as the rules alone have it.
func (r *Rules) Written(key string) *Plan { return r.match(key) }

// HasOverrides is false where there is no override at all.
func (r *Rules) HasOverrides() bool { return r.overrides != nil && r.overrides.set.any.Load() }

// OverrideChanges grows with each change of an override.
func (r *Rules) OverrideChanges() uint64 {
	if r.overrides == nil {
		return 0
	}
	return r.overrides.set.changes.Load()
}

// Overridden reports whether an override is in effect for a key now.
func (r *Rules) Overridden(key string) bool {
	return r.overrides != nil && r.overrides.Find(key) != nil
}

// BlockedByPattern reports whether the pattern or the network of a block applies to a key now.
func (r *Rules) BlockedByPattern(key string) bool {
	if r.overrides == nil || len(r.overrides.set.globs()) == 0 && r.overrides.set.networks.Load().size() == 0 {
		return false
	}
	o := r.overrides.Find(key)
	return o.Blocks() && o.OfPattern()
}

// Apply gives the plan that a key has under an override, which is in effect, in place of a plan of
// these rules; and the override, nil where there is none. It may be applied again. A block leaves the
// plan as it is: events still count under it.
func (r *Rules) Apply(plan *Plan, key string) (*Plan, *Override) {
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
	plan *Plan
	what unique.Handle[what]
}

// under gives the plan that an override makes of another, which may be nil.
func (c *changedPlans) under(r *Rules, plan *Plan, o *Override) *Plan {
	at := changedPlan{plan, o.what}
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
	known = r.change(plan, o.what.Value())
	c.plans[at] = known
	return known
}

// change makes of a plan what an override says. What cannot be said of it leaves it as it is: a
// tier that this process's rules do not have, windows where no rule decides.
func (r *Rules) change(plan *Plan, w what) *Plan {
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
	case w.exempt && live != nil:
		exempt := *live
		exempt.Shadow, exempt.Unlevelled = true, true
		out = newPlanThatKeeps(nil, slices.Concat([]*Rule{&exempt}, shadows), kept)
		out.exempt = live
	case w.rule != "":
		tier := r.named[w.rule]
		if tier == nil || tier.Shadow {
			return plan
		}
		out = newPlanThatKeeps(tier, shadows, kept)
	case w.windows != "" && live != nil:
		list := w.parsed()
		other, _ := live.withWindows(list, w.only)
		if list == nil || other.validateWindows() != nil {
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
