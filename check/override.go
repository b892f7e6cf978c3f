package check

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/overrides"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/windows"
)

// byOperator is what an operator has set for the key of a request.
type byOperator struct {
	override *overrides.Override // in effect, nil: none
	rulePlan *windows.Plan       // Request.Plan without it
}

// changes returns what an error says after the name of a rule if an override has changed the limits of the key.
func (o byOperator) changes() string {
	if o.override == nil {
		return ""
	}
	return " with an override"
}

// apply puts the overrides of operators into requests. A blocked key is never admitted, and needs no check in Redis.
func (s *Service) apply(rules *windows.Rules, reqs []Request) {
	if !rules.Overrides().Any() {
		return
	}
	for i := range reqs {
		r := &reqs[i]
		if r.Key == "" {
			continue
		}
		r.rulePlan = r.Plan
		// An override may change in the meantime, but a key must have one plan in a call.
		same := func(e Request) bool { return e.Key == r.Key && e.rulePlan == r.rulePlan }
		if j := slices.IndexFunc(reqs[:i], same); j >= 0 {
			r.Plan, r.override = reqs[j].Plan, reqs[j].override
		} else {
			r.Plan, r.override = rules.Apply(r.Plan, r.Key)
		}
		s.announce(r.Key, r.override)
		if !r.override.Blocks() {
			continue
		}
		s.changed(r.Key, blocked)
		// Mode charge counts what has already happened, also for a blocked key.
		r.Never = r.Never || r.blocked() && r.Mode != api.ModeCharge
	}
}

// blocked reports whether an override denies the request; it denies no refund.
func (r *Request) blocked() bool { return r.override.Blocks() && !r.Refund }

// countBlocked counts a request that an override denies.
func (s *Service) countBlocked(r Request) {
	s.config.Metrics.check(api.OverrideRule, "denied")
	s.record(api.OverrideRule, r, false)
}

// AllThrottled returns all keys that are over a limit or blocked, and the networks that are blocked, in no order. A key
// may come twice.
func (s *Service) AllThrottled(ctx context.Context) iter.Seq2[api.Throttled, error] {
	rules := s.config.Rules()
	return func(yield func(api.Throttled, error) bool) {
		for t, err := range s.config.Counter.ThrottledUnder(ctx, rules) {
			if !yield(t, err) {
				return
			}
		}
		for _, t := range rules.Overrides().BlockedNetworks() {
			if !yield(t, nil) {
				return
			}
		}
	}
}

// setFor returns what an operator has set for a key.
func (s *Service) setFor(plan *windows.Plan, key string) (set api.SetByOperator) {
	if _, o := s.config.Rules().Apply(plan, key); o != nil && api.ValidateKey(key) == nil {
		one := o.API()
		set.Override = &one
	}
	return set
}

// addByOperator adds the override of a request to its answer.
func (r *Request) addByOperator(out *api.CheckAnswer) {
	if r.override == nil {
		return
	}
	o := r.override.API()
	out.Override, out.Reason = o.Kind(), o.Reason
	switch {
	case r.blocked():
		out.Charged = r.Mode == api.ModeCharge && len(out.Windows) > 0
		out.Rule, out.Allowed, out.Source, out.Note = api.OverrideRule, false, api.SourceOverride, ""
		out.RetryAfterMs = -1
		if o.UntilMs > 0 {
			out.RetryAfterMs = max(r.override.LeftMs(), 1)
		}
	case r.Plan.Exempt() != nil:
		out.Rule, out.Note = r.Plan.Exempt().Name, "an override exempts this key from its limits"
		if len(out.Shadow) > 0 {
			out.Shadow = out.Shadow[1:] // without the rule itself
		}
	}
}

// longest returns the longer of two waits. Below 0 means that no wait helps.
func longest(a, b int64) int64 {
	if a < 0 || b < 0 {
		return -1
	}
	return max(a, b)
}

// ParseSpan reads a span of time as a rules file has it: 90s, 1h, 7d12h.
func ParseSpan(text string) (time.Duration, error) { return windows.ParseDuration(text) }

// overrides returns the overrides that apply to the rules. Without them, none can be set or read.
func (s *Service) overrides() (*overrides.All, error) {
	if all := s.config.Rules().Overrides(); all != nil {
		return all, nil
	}
	return nil, fmt.Errorf("%w: this server does not use overrides", api.ErrBadRequest)
}

// SetOverride sets the override of a key or a pattern: in this process before it returns, in others within a second.
// The decisions that change with it are written at once. If lasts is above 0, the override is valid for that long, in
// place of UntilMs.
func (s *Service) SetOverride(ctx context.Context, one api.Override, lasts time.Duration) (api.OverrideSet, error) {
	all, err := s.overrides()
	if err == nil {
		one, err = all.Set(ctx, s.config.Rules().ValidateOverride, one, lasts)
	}
	if err == nil {
		err = s.writeDecisions(ctx, one.Key)
	}
	return api.OverrideSet{Override: one, OverrideEffect: s.config.Rules().Effect(one)}, unwritten(err)
}

// PreviewOverride returns what SetOverride would do, and how many keys a pattern or a network covers. It sets
// nothing.
func (s *Service) PreviewOverride(ctx context.Context, one api.Override, lasts time.Duration) (api.OverrideSet,
	error) {
	all, err := s.overrides()
	if err == nil {
		one, err = all.Preview(s.config.Rules().ValidateOverride, one, lasts)
	}
	out := api.OverrideSet{Override: one, OverrideEffect: s.config.Rules().Effect(one)}
	if err != nil || one.Several() == "" {
		return out, err
	}
	covers, err := s.config.Counter.Covered(ctx, s.config.Rules(), one)
	out.Covers = &covers
	return out, unavailable(err)
}

// ClearOverride removes an override, and reports whether there was one.
func (s *Service) ClearOverride(ctx context.Context, key, pattern, by, reason string) (had bool, err error) {
	all, err := s.overrides()
	if err == nil {
		had, err = all.Clear(ctx, key, pattern, by, reason)
	}
	if err == nil && had {
		err = s.writeDecisions(ctx, key)
	}
	return had, unwritten(err)
}

// writeDecisions writes the current decisions of a key whose override changed. For a pattern, workers write them.
func (s *Service) writeDecisions(ctx context.Context, key string) error {
	if key == "" {
		return nil
	}
	s.changed(key, reset)
	_, _, err := s.config.Counter.Sweep(ctx, s.config.Counter.Partition(key), s.config.Rules(),
		[]string{overrides.Field(key)})
	return err
}

const noChanges = "changes of the override: they need a token of the scope admin"

// addChanges puts the changes of an override into a source of a history.
func (s *Service) addChanges(ctx context.Context, req HistoryRequest, into *source) error {
	all, err := s.overrides()
	if err != nil {
		return err
	}
	list, err := all.History(ctx, req.Key, req.Pattern, req.N+1, into.reached)
	for _, c := range list {
		into.entries = append(into.entries, positioned{c.ID, api.HistoryEntry{AtMs: c.AtMs, Change: &c.OverrideChange}})
	}
	return unavailable(err)
}

// Override returns the override of a key or a pattern, and false if there is none.
func (s *Service) Override(ctx context.Context, key, pattern string) (api.Override, bool, error) {
	all, err := s.overrides()
	if err != nil {
		return api.Override{}, false, err
	}
	one, err := all.Get(ctx, key, pattern)
	if err != nil || one == nil {
		return api.Override{}, false, unavailable(err)
	}
	return one.API(), true, nil
}

// Overrides returns the first n overrides after that of a key or a pattern, ordered by target; see overrides.All.Page.
func (s *Service) Overrides(n int, afterKey, afterPattern string) []api.Override {
	all, err := s.overrides()
	if err != nil {
		return nil
	}
	return all.Page(n, overrides.Target(afterKey, afterPattern))
}

// unavailable wraps an error that the caller did not cause with api.ErrUnavailable.
func unavailable(err error) error {
	if err == nil || api.NameOf(err) != "" {
		return err
	}
	return fmt.Errorf("%w: %w", api.ErrUnavailable, err)
}

// errRepeatable is for a write that Redis may do, and that has the same effect if it is done twice.
var errRepeatable = fmt.Errorf("%w: it may be sent again", api.ErrOutcomeUnknown)

// unwritten is unavailable for the error of a write: it also wraps errRepeatable if Redis may do the write.
func unwritten(err error) error {
	if err == nil || api.NameOf(err) != "" || errors.Is(err, context.Canceled) || redisclient.NotSent(err) {
		return unavailable(err)
	}
	return fmt.Errorf("%w: %w: %w", api.ErrUnavailable, errRepeatable, err)
}
