package pipeline

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/stream"
)

// flushEvery is how often the load is sent: one pipeline with the events that have become due.
const flushEvery = time.Millisecond

// retention of the run's events.
const retention = 10 * time.Minute

// load appends at the rate for d, however long Redis takes to answer: late events are sent with the next flush.
func (r *run) load(ctx context.Context, d time.Duration) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	start, done := time.Now(), int64(0)
	for elapsed := time.Duration(0); elapsed < d; elapsed = time.Since(start) {
		due := int64(r.Rate * elapsed.Seconds())
		if err := r.send(ctx, int(due-done)); err != nil {
			return err
		}
		done = due
		if err := r.probes.tick(ctx); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// fill appends n events as fast as Redis accepts them.
func (r *run) fill(ctx context.Context, n int) error {
	for n > 0 {
		some := min(n, 2000)
		if err := r.send(ctx, some); err != nil {
			return err
		}
		n -= some
	}
	return nil
}

func (r *run) send(ctx context.Context, n int) error {
	if n == 0 {
		return nil
	}
	pipe := r.Client.Pipeline()
	for range n {
		add(ctx, pipe, r.keys, "user:"+strconv.Itoa(r.choose()))
	}
	if now := time.Now(); now.Sub(r.renewed) > time.Second {
		r.renewed = now
		for p := range r.keys.Partitions {
			pipe.PExpire(ctx, r.keys.Events(p), retention)
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("appending: %w", err)
	}
	r.sent += int64(n)
	return nil
}

// add adds one event to a pipeline, as any producer would.
func add(ctx context.Context, pipe redis.Pipeliner, keys *stream.Keys, key string) {
	pipe.XAdd(ctx, &redis.XAddArgs{
		Stream: keys.Events(keys.Partition(key)), MinID: strconv.FormatInt(time.Now().Add(-retention).UnixMilli(), 10),
		Approx: true, Values: []any{"key", key, "count", 1},
	})
}
