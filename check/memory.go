package check

import (
	"slices"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// fromMemory denies a call without Redis where a key of it is denied for certain. Of its other
// keys nothing may be known; then unasked says so. Where one of these has shadow rules, Redis must
// evaluate them, and the call is not decided here.
func (s *Service) fromMemory(c *call) (decision, bool) {
	if !s.denials.used.Load() || c.never || slices.ContainsFunc(c.asks, func(a windows.Request) bool {
		return a.ChargesDenied() || a.Idempotency != nil
	}) {
		return decision{}, false // Redis has something to count, or the answer that was given before
	}
	d := decision{source: api.SourceCache, outcome: "cache_"}
	d.Atomic = true // nothing is charged anywhere
	var unasked []int
	for i, a := range c.asks {
		state, ok := s.denials.lookup(a)
		if !ok {
			unasked = append(unasked, i)
			if len(a.Plan.Shadows) > 0 {
				return decision{}, false
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
	return d, d.Items != nil
}
