package consumers

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/stream"
)

// Gauges measures what stands in the streams: the age of the oldest unread
// event is the signal to alert on, as `lag` is not true after a trim.
type Gauges struct {
	redis   redis.UniversalClient
	keys    *stream.Keys
	metrics *Metrics
	every   time.Duration
	log     *slog.Logger
}

// Run measures until ctx ends.
func (g *Gauges) Run(ctx context.Context) {
	for {
		if err := g.measure(ctx); err != nil && ctx.Err() == nil {
			g.log.Debug("measuring failed", "error", err)
		}
		if !pause(ctx, g.every) {
			return
		}
	}
}

// measure sets the gauges of each partition whose server answers; those of the
// others stay as they were last seen.
func (g *Gauges) measure(ctx context.Context) error {
	backlogs, failed := stream.Backlogs(ctx, g.redis, g.keys)
	pipe := g.redis.Pipeline()
	depth := make([]*redis.IntCmd, g.keys.Partitions)
	head := make([]*redis.XMessageSliceCmd, g.keys.Partitions)
	for p := range g.keys.Partitions {
		depth[p] = pipe.XLen(ctx, g.keys.Outbox(p))
		head[p] = pipe.XRangeN(ctx, g.keys.Outbox(p), "-", "+", 1)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for p, b := range backlogs {
		g.metrics.oldestUnread.WithLabelValues(label(p)).Set(b.Oldest.Seconds())
		g.metrics.pending.WithLabelValues(label(p)).Set(float64(b.Pending))
		if err := errors.Join(depth[p].Err(), head[p].Err()); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		g.metrics.outboxDepth.WithLabelValues(label(p)).Set(float64(depth[p].Val()))
		g.metrics.outboxOldest.WithLabelValues(label(p)).Set(stream.Age(head[p].Val(), b.NowMs).Seconds())
	}
	return failed
}
