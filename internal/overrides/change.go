package overrides

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/lua"
)

// outcome is the outcome of override.lua.
type outcome int64

// The outcomes. 0: there was no override to remove.
const (
	changed    outcome = 1
	past       outcome = -1 // its end has passed
	unreadable outcome = -2
	otherTime  outcome = -3 // its end was not computed from the present time
)

// Set sets the override of a key, a pattern or a network, in place of the one before, and waits until it is
// in effect in this process. lasts, if above 0, is how long after now it ends, by Redis's clock.
// The error wraps api.ErrBadOverride or ErrBadKey if it cannot be set.
func (o *All) Set(ctx context.Context, validate func(*api.Override) error, one api.Override, lasts time.Duration) (
	api.Override, error) {
	if err := o.validate(validate, &one); err != nil {
		return one, err
	}
	p := o.store.Keys.Partition(one.Key + one.Several())
	one.AtMs = o.Clock(p)
	for attempt := 1; ; attempt++ {
		got, now, err := o.setAt(ctx, p, &one, lasts)
		if err != nil || got != otherTime {
			return one, err
		}
		if attempt == 5 {
			return one, fmt.Errorf("%w: Redis's clock jumps, or Redis takes longer than a second to answer",
				api.ErrUnavailable)
		}
		// The clock of Redis or of this machine was set after compareClocks compared them.
		o.ahead[p].Add(now - one.AtMs)
		one.AtMs = now
	}
}

// Preview returns the override that Set would set now, without AtMs, or the error that Set would return. It sets
// nothing.
func (o *All) Preview(validate func(*api.Override) error, one api.Override, lasts time.Duration) (api.Override,
	error) {
	if err := o.validate(validate, &one); err != nil {
		return one, err
	}
	one.AtMs = o.Clock(o.store.Keys.Partition(one.Key + one.Several()))
	err := setEnd(&one, lasts)
	if err == nil && one.UntilMs > 0 && one.UntilMs <= one.AtMs {
		err = pastError(one, one.AtMs)
	}
	one.AtMs = 0
	return one, err
}

// validate checks what does not depend on the time.
func (o *All) validate(validate func(*api.Override) error, one *api.Override) error {
	if err := validate(one); err != nil {
		return err
	}
	if n, ok := networkOf("\n" + one.Network); ok && o.set.networks.Load().get(n) == nil &&
		o.set.networks.Load().count >= MaxNetworks {
		return fmt.Errorf("%w: there are %d networks, expected at most that many", api.ErrBadOverride, MaxNetworks)
	}
	if one.Pattern != "" && o.set.get("\n"+one.Pattern) == nil && len(o.set.several()) >= MaxPatterns {
		return fmt.Errorf("%w: there are %d patterns, expected at most %d", api.ErrBadOverride,
			len(o.set.several()), MaxPatterns)
	}
	return nil
}

// setEnd sets when an override ends: `lasts` after its AtMs, or, if lasts is 0, at its UntilMs.
func setEnd(one *api.Override, lasts time.Duration) error {
	if lasts > 0 {
		one.UntilMs = one.AtMs + lasts.Milliseconds()
	}
	if one.UntilMs < 0 || one.UntilMs > one.AtMs+MaxDuration.Milliseconds() {
		return fmt.Errorf("%w: until: it ends in more than 100 years; leave it out for one without an end",
			api.ErrBadOverride)
	}
	return nil
}

func pastError(one api.Override, nowMs int64) error {
	return fmt.Errorf("%w: until: %s has passed: Redis's clock is at %s", api.ErrBadOverride,
		time.UnixMilli(one.UntilMs).UTC().Format(time.RFC3339), time.UnixMilli(nowMs).UTC().Format(time.RFC3339))
}

// setAt sets an override with its end, see setEnd. If lasts is above 0 and AtMs is not the present time by Redis's
// clock, the override is not set. setAt also returns the present time.
func (o *All) setAt(ctx context.Context, p int, one *api.Override, lasts time.Duration) (got outcome, nowMs int64,
	err error) {
	if err := setEnd(one, lasts); err != nil {
		return 0, 0, err
	}
	from := lua.Now(0)
	if lasts > 0 {
		from = lua.Now(one.AtMs)
	}
	stored := *one
	stored.SetTarget("", "")
	value, err := json.Marshal(stored)
	if err != nil {
		return 0, 0, err
	}
	got, nowMs, err = o.change(ctx, p, Target(one.Key, one.Several()), string(value), one.By, one.Reason, from)
	switch {
	case err != nil:
	case got == past:
		err = pastError(*one, nowMs)
	case got == unreadable:
		err = fmt.Errorf("%w: Redis cannot read it", api.ErrBadOverride)
	}
	return got, nowMs, err
}

// Clear removes the override of a key or a pattern and waits until that is in effect in this process.
// It returns false if there was none.
func (o *All) Clear(ctx context.Context, key, pattern, by, reason string) (bool, error) {
	if err := api.ValidateReason(reason); err != nil {
		return false, err
	}
	got, _, err := o.change(ctx, o.store.Keys.Partition(key+pattern), Target(key, pattern), "", by, reason, 0)
	return got == changed, err
}

// change sets an override, as JSON, or removes it if value is "". from is the time from which its end was computed; 0:
// it was not computed. If change runs again, the audit stream has another entry.
func (o *All) change(ctx context.Context, p int, target, value, by, reason string, from lua.Now) (got outcome,
	nowMs int64, err error) {
	r := o.store.call(ctx, "override", p, target, value, by, reason, auditEntries, from.Arg())
	nowMs, got = r.Integer(), outcome(r.Integer())
	if err := r.End(); err != nil {
		return got, nowMs, err
	}
	o.mu.Lock()
	targets, err := o.catchUp(ctx, p)
	if err != nil { // it is set anyway, and Run will read it
		o.log.Warn("an override is changed in Redis, but this process cannot read it yet", "error", err)
	}
	o.mu.Unlock()
	o.callHooks(targets)
	return got, nowMs, nil
}

// Get returns the override that Redis has for a key or a pattern now, nil if there is none or it has ended.
func (o *All) Get(ctx context.Context, key, pattern string) (*Override, error) {
	p, target := o.store.Keys.Partition(key+pattern), Target(key, pattern)
	value, err := o.store.Redis.HGet(ctx, o.store.Keys.Overrides(p), target).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", o.store.Keys.Overrides(p), err)
	}
	if one := parse(o, p, target, value); one != nil && one.InEffect() {
		return one, nil
	}
	return nil, nil
}

// Page returns the first n overrides in effect whose targets come after `after`, by target. Patterns come
// before keys. `after` is "" for the first page.
func (o *All) Page(n int, after string) []api.Override {
	list := o.set.page(n, func(one *Override) bool {
		return one.target > after && one.InEffect()
	})
	out := make([]api.Override, len(list))
	for i, one := range list {
		out[i] = one.API()
	}
	return out
}

// Change is one change of an override, from the audit stream.
type Change struct {
	ID   string // of the stream's entry
	AtMs int64
	api.OverrideChange
}

// History returns up to n changes of the override of a key or a pattern, the newest first. It returns the
// changes before the entry with the ID `before`, or the newest if `before` is "".
func (o *All) History(ctx context.Context, key, pattern string, n int, before string) ([]Change, error) {
	p, target := o.store.Keys.Partition(key+pattern), Target(key, pattern)
	var out []Change
	from := "+"
	if before != "" {
		from = "(" + before
	}
	for {
		entries, err := o.store.Redis.XRevRangeN(ctx, o.store.Keys.Audit(p), from, "-", scanStep).Result()
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", o.store.Keys.Audit(p), err)
		}
		for _, e := range entries {
			if text(e, "target") != target {
				continue
			}
			out = append(out, Change{e.ID, number(text(e, "at")), api.OverrideChange{By: text(e, "by"),
				Reason: text(e, "reason"),
				Before: api.ParseOverride(text(e, "before")), After: api.ParseOverride(text(e, "after"))}})
			if len(out) == n {
				return out, nil
			}
		}
		if len(entries) < scanStep {
			return out, nil
		}
		from = "(" + entries[len(entries)-1].ID
	}
}
