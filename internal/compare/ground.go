package compare

import (
	"context"
	"errors"
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

// ground is one algorithm's part of the Redis server: its keys, and the CPU time and memory that its requests took.
//
// Keys expire by Redis's own clock, which differs from the time of the trace. With a clock that is passed in,
// counters live for ten minutes or more. A run may take longer, so after each turn the expiry of the keys is
// extended. The outboxes, which a relay empties in normal operation, are emptied too, so that the memory is that of
// the counters.
type ground struct {
	client  redis.UniversalClient
	keys    *stream.Keys
	touched *touched
	counter *counters.Redis

	tellsCPU, tellsMemory bool
	cpu                   time.Duration
	memory                int64 // bytes

	cpuBefore    time.Duration
	memoryBefore int64
}

// touched is a client that records which keys its scripts used.
type touched struct {
	redis.UniversalClient
	names map[string]struct{}
}

func (t *touched) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	t.note(keys)
	return t.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

func (t *touched) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	t.note(keys)
	return t.UniversalClient.Eval(ctx, script, keys, args...)
}

func (t *touched) FCall(ctx context.Context, function string, keys []string, args ...any) *redis.Cmd {
	t.note(keys)
	return t.UniversalClient.FCall(ctx, function, keys, args...)
}

func (t *touched) note(keys []string) {
	for _, k := range keys {
		t.names[k] = struct{}{}
	}
}

func newGround(ctx context.Context, c redis.UniversalClient, prefix string, rules *windows.Rules,
	clock *clock) (*ground, error) {
	keys, err := stream.NewKeys(prefix, stream.DefaultPartitions)
	if err != nil {
		return nil, err
	}
	g := &ground{client: c, keys: keys, touched: &touched{c, map[string]struct{}{keys.Meta(): {}}}}
	g.counter = counters.New(g.touched, keys)
	g.counter.Now = clock.read
	// Otherwise every write would renew expiries, as after a change of the rules.
	if err := g.counter.RecordRules(ctx, rules); err != nil {
		return nil, err
	}
	// The first check loads the script. The cost of that does not belong to the trace.
	plan := rules.PlanOf(rules.List()[0])
	if _, err := g.counter.Check(ctx, []counters.Request{{Plan: plan, Key: "warm-up", Cost: 1}}); err != nil {
		return nil, err
	}
	if err := g.keep(ctx); err != nil {
		return nil, err
	}
	if g.tellsCPU, err = tells(ctx, c, measure.CPU); err != nil {
		return nil, err
	}
	g.tellsMemory, err = tells(ctx, c, measure.Memory)
	return g, err
}

func tells[T any](ctx context.Context, c redis.UniversalClient, ask func(context.Context, redis.UniversalClient) (T,
	error)) (bool, error) {
	_, err := ask(ctx, c)
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err != nil && !errors.Is(err, measure.ErrNotTold) {
		return false, err
	}
	return err == nil, nil
}

// begin reads the server's CPU time and memory before a stretch of requests.
func (g *ground) begin(ctx context.Context) (err error) {
	if g.tellsMemory {
		if g.memoryBefore, err = measure.Memory(ctx, g.client); err != nil {
			return err
		}
	}
	if g.tellsCPU {
		g.cpuBefore, err = measure.CPU(ctx, g.client)
	}
	return err
}

// end reads them again after the stretch, and extends the expiry of the keys.
func (g *ground) end(ctx context.Context) error {
	if g.tellsCPU {
		now, err := measure.CPU(ctx, g.client)
		if err != nil {
			return err
		}
		g.cpu += now - g.cpuBefore
	}
	if err := g.keep(ctx); err != nil {
		return err
	}
	if g.tellsMemory {
		now, err := measure.Memory(ctx, g.client)
		if err != nil {
			return err
		}
		g.memory += now - g.memoryBefore
	}
	return nil
}

func (g *ground) keep(ctx context.Context) error {
	pipe := g.client.Pipeline()
	for name := range g.touched.names {
		pipe.PExpire(ctx, name, keepFor)
	}
	for _, p := range g.keys.All() {
		pipe.Unlink(ctx, g.keys.Outbox(p))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("keeping the keys of %s: %w", g.keys.Prefix, err)
	}
	clear(g.touched.names)
	return nil
}
