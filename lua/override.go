package lua

import "context"

// OverridePartition names the keys of one partition that overrides touch.
type OverridePartition struct {
	CheckPartition
	Overrides, Audit string
}

func (p OverridePartition) keys() []string {
	return []string{p.Levels, p.Due, p.Outbox, p.Overrides, p.Audit}
}

// OverrideChange is one change of an override: a target (a key, or a line feed and a pattern) and
// its new override as JSON; "" removes it.
type OverrideChange struct {
	Target, Override, By, Reason string
	Keep                         int64 // entries of the audit stream
	// FromMs is the time from which the override's end was computed; 0: it was not computed.
	FromMs int64
}

// OverrideOutcome is the outcome of a change.
type OverrideOutcome int64

// The outcomes.
const (
	OverrideChanged    OverrideOutcome = 1
	OverrideNone       OverrideOutcome = 0  // there was none to remove
	OverridePast       OverrideOutcome = -1 // its end has passed
	OverrideUnreadable OverrideOutcome = -2
	OverrideOtherTime  OverrideOutcome = -3 // FromMs is not the present
)

// OverrideReply is the result of SetOverride.
type OverrideReply struct {
	NowMs       int64
	Outcome     OverrideOutcome
	Transitions int64
	Before      string // JSON; "" if there was none
}

// SetOverride runs override.lua. If it is sent again, it sets the same override again, and adds another
// entry to the audit stream.
func (s *Caller) SetOverride(ctx context.Context, p OverridePartition, now Now, o OverrideChange,
) (OverrideReply, error) {
	r := s.call(ctx, "override", nil, p.keys(), []any{now.arg(), o.Target, o.Override, o.By, o.Reason, o.Keep,
		Now(o.FromMs).arg()})
	out := OverrideReply{NowMs: r.integer(), Outcome: OverrideOutcome(r.integer()), Transitions: r.integer(),
		Before: next[string](&r)}
	return out, r.end()
}

// ExpireItem is a target to check, and the override of a pattern, as JSON, that applies if the
// target itself has none.
type ExpireItem struct{ Target, Pattern string }

// ExpireOverrides runs expire-overrides.lua for targets of one partition. It returns how many transitions it wrote and
// how many overrides ended. It is safe to send again.
// If above is not 0, the decisions that are in force are published again, with versions above that number.
func (s *Caller) ExpireOverrides(ctx context.Context, p OverridePartition, now Now, keep, above int64,
	items []ExpireItem) (transitions, ended int64, err error) {
	args := append(make([]any, 0, 3+2*len(items)), now.arg(), keep, above)
	for _, it := range items {
		args = append(args, it.Target, it.Pattern)
	}
	r := s.call(ctx, "expire-overrides", nil, p.keys(), args)
	return r.integer(), r.integer(), r.end()
}
