package counters

import (
	"context"

	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// Refund gives units of a key back, as if the oldest units that its longest window
// holds had never been charged. It returns how many units it gave back: no more than
// the window holds. Call it while that window still counts the units, and do not call
// it again if its outcome is unknown.
func (s *Redis) Refund(ctx context.Context, plan *windows.Plan, key string, units int64) (refunded int64,
	st windows.KeyState, err error) {
	s.noticePlan(plan)
	var got lua.KeyState
	err = s.retryInPeriod(func() error {
		own := s.Key(plan, key)
		keys := append(s.appendLevels(nil, own.Partition), own.Meters...)
		r := s.lua.Call(ctx, "refund", []*lua.Plan{own.Plan}, keys, s.Clock().Arg(), units, own.Plan.Text())
		refunded, got = r.Integer(), r.State(own.Plan)
		return r.End()
	})
	if err != nil {
		return 0, windows.KeyState{}, err
	}
	return refunded, plan.State(got), nil
}
