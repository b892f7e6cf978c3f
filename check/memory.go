package check

import (
	"context"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// fromMemory denies a call without a check in Redis where a key of it is denied for certain. Where that is so unless
// something came back lately, it waits for the marks that tell it, until the deadline, if there is one: they
// cost Redis less than a check, and take no longer.
func (s *Service) fromMemory(ctx context.Context, c *call, came, deadline time.Time) (decision, bool) {
	if !s.denials.used.Load() || c.never || slices.ContainsFunc(c.asks, func(a windows.Request) bool {
		return a.ChargesDenied() || a.Idempotency != nil
	}) {
		return decision{}, false // Redis has something to count, or the answer that was given before
	}
	for {
		d, ok, reading := s.denied(c, came)
		if ok || reading == nil || deadline.IsZero() || !waitFor(ctx, reading, deadline) {
			return d, ok
		}
	}
}

// denied is the answer to a call of which a key is denied for certain. Of its other keys nothing may be known; then
// unasked says so. Where one of these has shadow rules, Redis must evaluate them. Where it gives false, and reading is
// not nil, that may change when it is closed.
func (s *Service) denied(c *call, came time.Time) (d decision, ok bool, reading <-chan struct{}) {
	d = decision{source: api.SourceCache, outcome: "cache_"}
	d.Atomic = true // nothing is charged anywhere
	var unasked []int
	for i, a := range c.asks {
		state, ok, soon := s.denials.lookup(a, came)
		if !ok {
			unasked = append(unasked, i)
			if len(a.Plan.Shadows) > 0 {
				return decision{}, false, soon
			}
			if soon != nil {
				reading = soon
			}
			continue
		}
		if d.Items == nil {
			d.Items = make([]windows.KeyState, len(c.asks))
		}
		d.Items[i] = state
	}
	if len(unasked) > 0 {
		d.unasked = make([]bool, len(c.asks))
		for _, i := range unasked {
			d.unasked[i] = true
		}
	}
	return d, d.Items != nil, reading
}
