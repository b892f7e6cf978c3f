package windows

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/lua"
)

// Values returns up to n values of a key per field that its plan counts, the newest first, as they are at nowMs.
func (s *Redis) Values(ctx context.Context, plan *Plan, key string, nowMs int64, n int) (list []api.FieldValues,
	err error) {
	p := s.keys.Partition(key)
	names := s.meters(p, plan.forms, key)
	for i, m := range plan.fresh.meters {
		if m.algorithm != lua.Distinct {
			continue
		}
		seen, err := s.redis.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{Key: names[i], ByScore: true, Rev: true,
			Start: "+inf", Stop: "(" + strconv.FormatInt(nowMs-m.windowMs, 10), Count: int64(n)}).Result()
		if err != nil {
			return nil, err
		}
		one := api.FieldValues{Field: m.value.field, Hashed: !m.value.key.IsZero(), Values: []api.SeenValue{}}
		for _, v := range seen {
			text, _ := v.Member.(string)
			one.Values = append(one.Values, api.SeenValue{Value: text, LastSeenMs: int64(v.Score)})
		}
		list = append(list, one)
	}
	return list, nil
}
