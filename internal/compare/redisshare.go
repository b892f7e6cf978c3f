package compare

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/measure"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// keepFor is how long keys live if nobody removes them, for example after SIGKILL.
const keepFor = 24 * time.Hour

// redisShare is what one algorithm has in Redis: its keys, and the CPU time and memory that its requests took.
//
// Keys expire by Redis's own clock, which differs from the time of the trace. With a clock that is passed in,
// counters live for ten minutes or more. A run may take longer, so after each turn the expiry of the keys is
// extended. The outboxes, which a relay empties in normal operation, are emptied too, so that the memory is that of
// the counters.
type redisShare struct {
	client  redis.UniversalClient
	keys    *stream.Keys
	plan    *windows.Plan
	counter *counters.Redis

	cpu, memory float64 // in ns and bytes; NaN: the server does not report it
}

func newRedisShare(ctx context.Context, c redis.UniversalClient, prefix string, rules *windows.Rules,
	clock *clock) (*redisShare, error) {
	keys, err := stream.NewKeys(prefix, stream.DefaultPartitions)
	if err != nil {
		return nil, err
	}
	g := &redisShare{client: c, keys: keys, plan: rules.PlanOf(rules.List()[0]), counter: counters.New(c, keys)}
	g.counter.Now = clock.read
	// Otherwise every write would renew expiries, as after a change of the rules.
	if err := g.counter.RecordRules(ctx, rules); err != nil {
		return nil, err
	}
	// The first check loads the script. The cost of that does not belong to the trace.
	const first = "warm-up"
	if _, err := g.counter.Check(ctx, []counters.Request{{Plan: g.plan, Key: first, Cost: 1}}); err != nil {
		return nil, err
	}
	return g, g.keep(ctx, []Request{{Key: first}})
}

// measure runs do, which answers the requests, adds its CPU time and memory, and extends the expiry of the keys.
func (g *redisShare) measure(ctx context.Context, requests []Request, do func() error) error {
	var cpu float64
	memory, err := measure.Used(ctx, g.client, measure.Memory, func() (err error) {
		if cpu, err = measure.Used(ctx, g.client, measure.CPU, do); err != nil {
			return err
		}
		return g.keep(ctx, requests)
	})
	g.cpu += cpu
	g.memory += memory
	return err
}

func (g *redisShare) keep(ctx context.Context, requests []Request) error {
	pipe := g.client.Pipeline()
	pipe.PExpire(ctx, g.keys.Meta(), keepFor)
	for _, r := range requests {
		for _, form := range g.plan.Forms() {
			pipe.PExpire(ctx, g.keys.Counter(g.keys.Partition(r.Key), form, r.Key), keepFor)
		}
	}
	for _, p := range g.keys.All() {
		pipe.PExpire(ctx, g.keys.Levels(p), keepFor)
		pipe.PExpire(ctx, g.keys.Due(p), keepFor)
		pipe.Unlink(ctx, g.keys.Outbox(p))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("keeping the keys of %s: %w", g.keys.Prefix, err)
	}
	return nil
}
