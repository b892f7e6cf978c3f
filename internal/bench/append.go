package bench

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/stream"
)

// chunk is the i-th pipeline's share of the picks.
func (r *room) chunk(picks []int, i int) []int {
	return picks[i*r.cfg.Batch : min(len(picks), (i+1)*r.cfg.Batch)]
}

// pipelines is how many calls the picks make where each sends a batch.
func (r *room) pipelines(_ context.Context, picks []int) (int, error) {
	return (len(picks) + r.cfg.Batch - 1) / r.cfg.Batch, nil
}

// appends sends events as a producer does, a batch in a pipeline.
func (r *room) appends() (contestant, error) {
	log, err := stream.NewLog(r.redis, r.keys, stream.DefaultRetention)
	if err != nil {
		return contestant{}, err
	}
	return contestant{
		prepare: r.pipelines,
		call: func(ctx context.Context, picks []int, i int) (result, error) {
			some := r.chunk(picks, i)
			events := make([]api.Event, len(some))
			for j, k := range some {
				events[j] = api.Event{Key: r.names[k], Count: 1}
			}
			out := log.Append(ctx, events)
			return result{ops: int64(out.Appended)}, out.Err
		},
		tidy: func(ctx context.Context) error { return r.empty(ctx, r.keys.Events) },
	}, nil
}

// xadd appends the same events by as deep a pipeline of nothing but XADD.
func (r *room) xadd() contestant {
	return contestant{
		name:    "XADD",
		prepare: r.pipelines,
		call: func(ctx context.Context, picks []int, i int) (result, error) {
			n, err := r.xaddAll(ctx, r.chunk(picks, i))
			return result{ops: n}, err
		},
		tidy: func(ctx context.Context) error { return r.empty(ctx, r.yardEvents) },
	}
}

func (r *room) yardEvents(p int) string { return r.yard(p, "events") }

// xaddAll appends events of the picks to the yardstick's streams, in one
// pipeline, and gives how many were.
func (r *room) xaddAll(ctx context.Context, picks []int) (appended int64, err error) {
	pipe := r.redis.Pipeline()
	for _, k := range picks {
		name := r.names[k]
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: r.yardEvents(r.keys.Partition(name)),
			Values: []any{"key", name, "count", 1}})
	}
	cmds, err := pipe.Exec(ctx)
	for _, c := range cmds {
		if c.Err() == nil {
			appended++
		}
	}
	if err != nil {
		return appended, fmt.Errorf("XADD: %w", err)
	}
	return appended, nil
}
