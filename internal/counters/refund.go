package counters

import (
	"context"

	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// Refund gives units of a key back, as if the oldest that its longest window
// holds had never been charged, and says how many that were: no more than the
// window holds. It must come while that window still counts what is given back,
// and must not be sent again where its outcome is unknown.
func (s *Redis) Refund(ctx context.Context, plan *windows.Plan, key string, units int64) (given int64,
	st windows.KeyState, err error) {
	s.noticePlan(plan)
	var got lua.CheckResult
	err = s.retryInPeriod(func() (err error) {
		p := s.partition(s.keys.Partition(key))
		given, got, err = s.lua.Refund(ctx, p, s.Clock(), units, s.Key(plan, key))
		return err
	})
	if err != nil {
		return 0, windows.KeyState{}, err
	}
	return given, plan.State(got), nil
}
