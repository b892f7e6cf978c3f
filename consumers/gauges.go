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
func (g *Gauges) Run(ctx context.Context) error {
	for {
		if err := g.measure(ctx); err != nil && ctx.Err() == nil {
			g.log.Debug("measuring failed", "error", err)
		}
		if !pause(ctx, g.every) {
			return nil
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
	unread := map[int]*redis.XMessageSliceCmd{}
	for p := range g.keys.Partitions {
		g.metrics.outboxDepth.WithLabelValues(label(p)).Set(float64(depth[p].Val()))
		g.metrics.outboxOldest.WithLabelValues(label(p)).Set(ageOf(head[p].Val(), now))
		for _, group := range groups[p].Val() {
			if group.Name == stream.Group {
				g.metrics.pending.WithLabelValues(label(p)).Set(float64(group.Pending))
				unread[p] = next.XRangeN(ctx, g.keys.Events(p), "("+group.LastDeliveredID, "+", 1)
			}
		}
	}
	if len(unread) == 0 {
		return nil
	}
	_, err := next.Exec(ctx)
	for p, cmd := range unread {
		if cmd.Err() == nil {
			g.metrics.oldestUnread.WithLabelValues(label(p)).Set(ageOf(cmd.Val(), now))
		}
	}
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
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
