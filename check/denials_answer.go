package check

import (
	"context"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/windows"
)

// decide denies a call without a check in Redis if one of its keys is denied for certain. If the denial of a key is
// old, decide waits until the deadline, if there is one, for the marks, which show whether units came back. Reading the
// marks costs Redis less than a check. If they do not arrive in time, Redis decides.
func (d *denials) decide(ctx context.Context, c *call, arrived, deadline time.Time) (decision, bool) {
	if !d.used.Load() || c.never || api.MayRepeat(ctx) ||
		slices.ContainsFunc(c.byKey, counters.Request.ChargesDenied) {
		return decision{}, false // Redis has something to count, or the answer that was given before
	}
	for wait := !deadline.IsZero(); ; {
		out, isOld := d.denied(c, arrived)
		if out.Items != nil || isOld < 0 || !wait {
			return out, out.Items != nil
		}
		reading, atMost := d.await(c.byKey[isOld], arrived)
		if reading == nil {
			return decision{}, false
		}
		if by := time.Now().Add(atMost); by.Before(deadline) {
			deadline = by
		}
		wait = pause.Closed(ctx, reading, deadline)
	}
}

// denied returns the answer to a call if one of its keys is denied for certain. If nothing is known of its other
// keys, skipped marks them. If one of those has shadow rules, or the caller wants the state of each key, Redis must
// evaluate them. If out has no Items, there is no answer. If isOld is 0 or more, newer marks may give an answer for
// the ask with that index.
func (d *denials) denied(c *call, arrived time.Time) (out decision, isOld int) {
	out, isOld = decision{source: api.SourceCache, outcome: "cache_"}, -1
	out.Atomic = true // nothing is charged anywhere
	var skipped []int
	for i, a := range c.byKey {
		state, known := d.lookup(a, arrived)
		if known == certain {
			if out.Items == nil {
				out.Items = make([]windows.KeyState, len(c.byKey))
			}
			out.Items[i] = state
			continue
		}
		skipped = append(skipped, i)
		if len(a.Plan.Shadows) > 0 || slices.ContainsFunc(c.requests, func(r Request) bool { return r.EachState }) {
			if known != old {
				i = -1
			}
			return decision{}, i
		}
		if known == old && isOld < 0 {
			isOld = i
		}
	}
	if len(skipped) > 0 {
		out.skipped = make([]bool, len(c.byKey))
		for _, i := range skipped {
			out.skipped[i] = true
		}
	}
	return out, isOld
}
