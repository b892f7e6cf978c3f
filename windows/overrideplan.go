package windows

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
	"unique"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/overrides"
)

// With returns the same rules under overrides. Match then returns the plan of a key under the
// override that is in effect at that moment.
func (r *Rules) With(o *overrides.All) *Rules {
	c := *r
	c.overrides = o
	return &c
}

// nameOfBlocks is the name of the decisions of blocks, which no rule can have.
const nameOfBlocks = api.OverrideRule

// MatchText returns the match of the rule, or in words that it is a tier, which has none.
func (r *Rule) MatchText() string {
	return cmp.Or(r.Match, "a tier, which only an override chooses")
}

// validateTier refuses a shadow without a match.
func (r *Rule) validateTier() *fault {
	if r.Match == "" && r.Shadow {
		return faultf("shadow",
			"shadow: true without match: only an override chooses such a rule, and never a shadow")
	}
	return nil
}

// under has the overrides of rules.
type under struct {
	overrides *overrides.All         // nil: none (With)
	changed   *planCache[changeStep] // the plans that overrides make of others
}

func newUnder() under { return under{changed: &planCache[changeStep]{}} }

// replacement has the fields of a plan that an override has made.
type replacement struct {
	written *Plan // the plan without the override, which may be nil
	exempt  *Rule // the rule that would decide, if the override exempts the key
}

// changeStep is a plan, which may be nil, and the effect of an override on it.
type changeStep struct {
	plan   *Plan
	effect unique.Handle[overrides.Effect]
}

// MatchAsWritten returns the plan of a key without overrides.
func (r *Rules) MatchAsWritten(key string) *Plan { return r.match(key) }

// AsWritten returns the plan without the override that has made this one; it may be nil. If no override has made
// this plan, AsWritten returns this plan.
func (p *Plan) AsWritten() *Plan {
	if p == nil || p.written == nil {
		return p
	}
	return p.written
}

// Lasting is like Match. If lasts is true, the key has this plan for as long as Version does not change. lasts is
// false if the key has an override, which may end.
func (r *Rules) Lasting(key string) (plan *Plan, version uint64, lasts bool) {
	version, lasts = r.Version(), r.overrides.Find(key) == nil // in this order: either may change
	return r.Match(key), version, lasts
}

// ClockMs returns the time of the clock of a partition's server in ms since 1970, as far as the process knows it.
// Without overrides, it is this machine's time, because clocks are only compared for overrides.
func (r *Rules) ClockMs(p int) int64 {
	if r.overrides == nil {
		return time.Now().UnixMilli()
	}
	return r.overrides.Clock(p)
}

// Version changes with each change of an override.
func (r *Rules) Version() uint64 { return r.overrides.Changes() }

// Overrides returns the overrides of With; nil if there are none.
func (r *Rules) Overrides() *overrides.All { return r.overrides }

// Under returns a function that returns the present rules under overrides. rules returns the present rules.
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

// Apply returns the plan that a key has under the override that is in effect, in place of a plan of
// these rules. It also returns the override, nil if there is none. The result may be passed to Apply
// again. A block does not change the plan, because events still count under it.
func (r *Rules) Apply(plan *Plan, key string) (*Plan, *overrides.Override) {
	o := r.overrides.Find(key)
	if o == nil {
		return plan, nil
	}
	written := plan.AsWritten()
	return r.changed.plan(changeStep{written, o.Effect()}, func() *Plan {
		return r.change(written, o.Effect().Value())
	}), o
}

// change returns the plan that the effect of an override makes from a plan. It returns the same plan
// if the effect cannot be applied: a tier that this process's rules do not have, or windows if no rule
// decides.
func (r *Rules) change(plan *Plan, e overrides.Effect) *Plan {
	var live *Rule
	var shadows []*Rule
	if plan != nil {
		live, shadows = plan.Live, plan.Shadows
	}
	// Units are kept for as long as without the override, because the override may end.
	kept := map[string]int64{}
	if plan != nil {
		for _, m := range plan.fresh.meters {
			kept[m.form] = m.SpanMs
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
		other, _, err := live.withWindows(e.Windows(), e.Only)
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

// keepLonger makes each write renew the expiry of the meters if this plan keeps one of them longer than
// the plan before it, because the last write may have been under that plan.
func (p *Plan) keepLonger(before *Plan) {
	for _, mine := range p.fresh.meters {
		for _, m := range before.fresh.meters {
			if m.form == mine.form && m.SpanMs < mine.SpanMs {
				p.periodic = p.fresh
			}
		}
	}
}

// Exempt returns the rule that would decide, if an override admits every check of the key; otherwise nil.
func (p *Plan) Exempt() *Rule {
	if p == nil {
		return nil
	}
	return p.exempt
}
