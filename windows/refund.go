package windows

import (
	"context"

	"github.com/streamcounter/streamcounter/lua"
)

// Refund gives units of a key back, as if the oldest that its longest window
// holds had never been charged, and says how many that were: no more than the
// window holds. It must come while that window still counts what is given back,
// and must not be sent again where its outcome is unknown.
func (s *Redis) Refund(ctx context.Context, plan *Plan, key string, units int64) (given int64, st KeyState, err error) {
	s.noticePlan(plan)
	err = s.following(ctx, func() []string { return []string{key} }, func() error {
		if err := s.carry(ctx, plan, key); err != nil {
			return err
		}
		now := s.follow(plan, key)
		p := s.partition(s.keys.Partition(key))
		var counters []lua.CheckResult
		if given, counters, err = lua.Refund(ctx, s.redis, p, s.now(), units, s.counters(now, key)); err != nil {
			return err
		}
		st = now.state(counters)
		return nil
	})
	return given, st, err
}
