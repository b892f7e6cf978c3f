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

// answer denies a call without a check in Redis where a key of it is denied for certain. Where that is so unless
// something came back lately, it waits for the marks that tell it, until the deadline, if there is one. The marks cost
// Redis less than a check, and take no longer. Where they do, Redis is asked.
func (d *denials) answer(ctx context.Context, c *call, came, deadline time.Time) (decision, bool) {
	if !d.used.Load() || c.never || slices.ContainsFunc(c.asks, func(a counters.Request) bool {
		return a.ChargesDenied() || a.Memory != nil
	}) {
		return decision{}, false // Redis has something to count, or the answer that was given before
	}
	for wait := !deadline.IsZero(); ; {
		out, isOld := d.denied(c, came)
		if out.Items != nil || isOld < 0 || !wait {
			return out, out.Items != nil
		}
		reading, atMost := d.await(c.asks[isOld], came)
		if reading == nil {
			return decision{}, false
		}
		if by := time.Now().Add(atMost); by.Before(deadline) {
			deadline = by
		}
		wait = pause.Closed(ctx, reading, deadline)
	}
}

// denied is the answer to a call of which a key is denied for certain. Of its other keys nothing may be known; then
// unasked says so. Where one of these has shadow rules, or the caller wants to know where each key stands, Redis must
// evaluate them. Without Items there is no answer. If isOld is 0 or more, newer marks
// may give one for that request.
func (d *denials) denied(c *call, came time.Time) (out decision, isOld int) {
	out, isOld = decision{source: api.SourceCache, outcome: "cache_"}, -1
	out.Atomic = true // nothing is charged anywhere
	var unasked []int
	for i, a := range c.asks {
		state, known := d.lookup(a, came)
		if known == certain {
			if out.Items == nil {
				out.Items = make([]windows.KeyState, len(c.asks))
			}
			out.Items[i] = state
			continue
		}
		unasked = append(unasked, i)
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
	if len(unasked) > 0 {
		out.unasked = make([]bool, len(c.asks))
		for _, i := range unasked {
			out.unasked[i] = true
		}
	}
	return out, isOld
}
