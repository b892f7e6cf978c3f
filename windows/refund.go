package windows

import (
	"context"

	"github.com/streamcounter/streamcounter/lua"
)

// Refund gives units of a key back, as if the oldest that its longest window
// holds had never been spent, and says how many that were: no more than the
// window holds. It must come while that window still counts what is given back,
// and must not be sent again where its outcome is unknown.
func (s *Redis) Refund(ctx context.Context, rule *Rule, key string, units int64) (given int64, st Standing, err error) {
	p := s.keys.Partition(key)
	partition := lua.CheckPartition{Levels: s.keys.Levels(p), Due: s.keys.Due(p), Outbox: s.keys.Outbox(p)}
	given, r, err := lua.Refund(ctx, s.redis, partition, s.counter(rule, key), s.now(), units, s.script(rule))
	if err != nil {
		return 0, Standing{}, err
	}
	return given, standingOf(r.NowMs, r.Windows), nil
}
