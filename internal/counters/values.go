package counters

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// Values returns up to n values of a key per field that its plan counts, the newest first, as of nowMs.
func (s *Redis) Values(ctx context.Context, plan *windows.Plan, key string, nowMs int64, n int) (list []api.FieldValues,
	err error) {
	p := s.keys.Partition(key)
	for _, m := range plan.ValueMeters() {
		seen, err := s.redis.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: s.keys.Counter(p, m.Form, key), ByScore: true, Rev: true,
			Start: "+inf", Stop: "(" + strconv.FormatInt(nowMs-m.WindowMs, 10), Count: int64(n)}).Result()
		if err != nil {
			return nil, err
		}
		one := api.FieldValues{Field: m.Field, Hashed: m.Hashed, Values: []api.SeenValue{}}
		for _, v := range seen {
			text, _ := v.Member.(string)
			one.Values = append(one.Values, api.SeenValue{Value: text, LastSeenMs: int64(v.Score)})
		}
		list = append(list, one)
	}
	return list, nil
}
