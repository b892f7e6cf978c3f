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

// measure sets the gauges of each partition whose server answers; those of the
// others stay as they were last seen.
func (g *Gauges) measure(ctx context.Context) error {
	clocks, failed := stream.Clocks(ctx, g.redis, g.keys)
	pipe := g.redis.Pipeline()
	groups := make([]*redis.XInfoGroupsCmd, g.keys.Partitions)
	depth := make([]*redis.IntCmd, g.keys.Partitions)
	head := make([]*redis.XMessageSliceCmd, g.keys.Partitions)
	for p := range g.keys.Partitions {
		groups[p] = pipe.XInfoGroups(ctx, g.keys.Events(p))
		depth[p] = pipe.XLen(ctx, g.keys.Outbox(p))
		head[p] = pipe.XRangeN(ctx, g.keys.Outbox(p), "-", "+", 1)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error; a stream that is not there is one

	next := g.redis.Pipeline()
	unread := make([]*redis.XMessageSliceCmd, g.keys.Partitions) // nil where there is no group
	for p := range g.keys.Partitions {
		for _, group := range groups[p].Val() {
			if group.Name == stream.Group {
				unread[p] = next.XRangeN(ctx, g.keys.Events(p), "("+group.LastDeliveredID, "+", 1)
			}
		}
	}
	if next.Len() > 0 {
		_, _ = next.Exec(ctx)
	}
	for p := range g.keys.Partitions {
		now, ok := clocks[p]
		if err := errors.Join(depth[p].Err(), head[p].Err()); !ok || err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		g.metrics.outboxDepth.WithLabelValues(label(p)).Set(float64(depth[p].Val()))
		g.metrics.outboxOldest.WithLabelValues(label(p)).Set(ageOf(head[p].Val(), now))
		if err := groups[p].Err(); err != nil && !stream.IsRefusal(err) { // refused: no such stream
			failed = errors.Join(failed, err)
			continue
		}
		if unread[p] == nil { // no stream, or nobody has read it yet
			g.metrics.oldestUnread.WithLabelValues(label(p)).Set(0)
			g.metrics.pending.WithLabelValues(label(p)).Set(0)
			continue
		}
		for _, group := range groups[p].Val() {
			if group.Name == stream.Group {
				g.metrics.pending.WithLabelValues(label(p)).Set(float64(group.Pending))
			}
		}
		if err := unread[p].Err(); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		g.metrics.oldestUnread.WithLabelValues(label(p)).Set(ageOf(unread[p].Val(), now))
	}
	return failed
}

// ageOf is how many seconds old the first message is by a clock in ms, 0 where there is none.
func ageOf(list []redis.XMessage, now int64) float64 {
	if len(list) == 0 {
		return 0
	}
	ms, _ := strconv.ParseInt(strings.SplitN(list[0].ID, "-", 2)[0], 10, 64)
	return max(0, float64(now-ms)/1000)
}
