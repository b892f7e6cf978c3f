package consumers

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
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

func (g *Gauges) measure(ctx context.Context) error {
	pipe := g.redis.Pipeline()
	clock := pipe.Time(ctx)
	groups := make([]*redis.XInfoGroupsCmd, g.keys.Partitions)
	depth := make([]*redis.IntCmd, g.keys.Partitions)
	head := make([]*redis.XMessageSliceCmd, g.keys.Partitions)
	for p := range g.keys.Partitions {
		groups[p] = pipe.XInfoGroups(ctx, g.keys.Events(p))
		depth[p] = pipe.XLen(ctx, g.keys.Outbox(p))
		head[p] = pipe.XRangeN(ctx, g.keys.Outbox(p), "-", "+", 1)
	}
	if _, err := pipe.Exec(ctx); err != nil && clock.Err() != nil {
		return err
	}
	now := clock.Val()

	next := g.redis.Pipeline()
	pending := make([]int64, g.keys.Partitions) // 0 where the group is gone
	unread := make([]*redis.XMessageSliceCmd, g.keys.Partitions)
	for p := range g.keys.Partitions {
		for _, group := range groups[p].Val() {
			if group.Name == stream.Group {
				pending[p] = group.Pending
				unread[p] = next.XRangeN(ctx, g.keys.Events(p), "("+group.LastDeliveredID, "+", 1)
			}
		}
	}
	if next.Len() > 0 {
		if _, err := next.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	for p := range g.keys.Partitions {
		var oldest float64
		if unread[p] != nil {
			oldest = ageOf(unread[p].Val(), now)
		}
		g.metrics.oldestUnread.WithLabelValues(label(p)).Set(oldest)
		g.metrics.pending.WithLabelValues(label(p)).Set(float64(pending[p]))
		g.metrics.outboxDepth.WithLabelValues(label(p)).Set(float64(depth[p].Val()))
		g.metrics.outboxOldest.WithLabelValues(label(p)).Set(ageOf(head[p].Val(), now))
	}
	return nil
}

// ageOf is how many seconds old the first message is, 0 where there is none.
func ageOf(list []redis.XMessage, now time.Time) float64 {
	if len(list) == 0 {
		return 0
	}
	text, _, _ := strings.Cut(list[0].ID, "-")
	ms, _ := strconv.ParseInt(text, 10, 64)
	return max(0, now.Sub(time.UnixMilli(ms)).Seconds())
}
