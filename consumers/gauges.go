package consumers

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
)

// gauges measures the backlog in the streams. Alert on the age of the oldest unread event, because `lag` is wrong
// after a trim.
type gauges struct {
	*shared
	ahead map[int]bool // partitions whose newest event is far ahead of the clock
}

// farAhead is how far the ID of an event must be ahead of Redis's clock to be reported. A clock that was set back
// explains smaller differences.
const farAhead = time.Minute

// run measures until ctx ends.
func (g *gauges) run(ctx context.Context) {
	for {
		if err := g.measure(ctx); err != nil && ctx.Err() == nil {
			g.Log.Debug("measuring failed", "error", err)
		}
		if !pause.For(ctx, g.GaugesEvery) {
			return
		}
	}
}

// measure sets the gauges of each partition whose server answers, and removes those of the other partitions.
func (g *gauges) measure(ctx context.Context) error {
	backlogs, failed := eventlog.Backlogs(ctx, g.Redis, g.Keys)
	pipe := g.Redis.Pipeline()
	depth := make([]*redis.IntCmd, g.Keys.Partitions)
	newest := make([]*redis.XMessageSliceCmd, g.Keys.Partitions)
	head := make([]*redis.XMessageSliceCmd, g.Keys.Partitions)
	for p := range g.Keys.Partitions {
		newest[p] = pipe.XRevRangeN(ctx, g.Keys.Events(p), "+", "-", 1)
		depth[p] = pipe.XLen(ctx, g.Keys.Outbox(p))
		head[p] = pipe.XRangeN(ctx, g.Keys.Outbox(p), "-", "+", 1)
	}
	eventlog.Exec(ctx, g.Redis, pipe)
	for p := range g.Keys.Partitions {
		b, answered := backlogs[p]
		set(g.Metrics.oldestUnread, p, answered, b.Oldest.Seconds())
		set(g.Metrics.pending, p, answered, float64(b.Pending))
		if answered && newest[p].Err() == nil {
			g.compareWithClock(p, newest[p].Val(), b.NowMs)
		} else {
			g.Metrics.aheadOfClock.DeleteLabelValues(label(p))
		}
		err := errors.Join(depth[p].Err(), head[p].Err())
		failed, answered = errors.Join(failed, err), answered && err == nil
		set(g.Metrics.outboxDepth, p, answered, float64(depth[p].Val()))
		set(g.Metrics.outboxOldest, p, answered, eventlog.Age(head[p].Val(), b.NowMs).Seconds())
	}
	return failed
}

// set sets the gauge of a partition. If the value could not be measured, it removes the gauge, because nobody would see
// that the last value is old.
func set(v *prometheus.GaugeVec, p int, measured bool, value float64) {
	if !measured {
		v.DeleteLabelValues(label(p))
		return
	}
	v.WithLabelValues(label(p)).Set(value)
}

// compareWithClock measures how far the newest event is ahead of the clock of its server. Redis never gives a new
// entry a smaller ID than the newest. So if a producer chooses a large ID, nothing trims the stream until that time,
// and after the greatest possible ID nobody can append; no other metric shows this. It is logged once.
func (g *gauges) compareWithClock(p int, newest []redis.XMessage, nowMs int64) {
	var ahead time.Duration
	if len(newest) > 0 {
		ms := entry.Message{ID: newest[0].ID}.Ms()
		ahead = time.Duration(min(max(0, ms-nowMs), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
	}
	g.Metrics.aheadOfClock.WithLabelValues(label(p)).Set(ahead.Seconds())
	far := ahead > farAhead
	if far && !g.ahead[p] {
		g.Log.Error(
			"an event has an ID of the future: nothing trims the stream until that time, and after the greatest ID "+
				"nobody can append. Stop that producer, then delete the stream; its unread events are lost",
			"stream", g.Keys.Events(p), "id", newest[0].ID)
	}
	g.ahead[p] = far
}
