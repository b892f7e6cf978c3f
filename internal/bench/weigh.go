package bench

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/measure"
)

// memory is what the counters of a part take.
type memory struct{ perKey, perEntry *float64 }

// fillAndWeigh fills the room up to now and tells what that took of the
// server's memory, where the server tells it.
func (r *room) fillAndWeigh(ctx context.Context, progress func(done float64)) (memory, error) {
	if r.cfg.Entries == 0 {
		return memory{}, nil
	}
	// The first fill of a server takes memory for scripts, which is not the
	// counters': fill some others before.
	other := *r.cfg
	other.Keys = min(other.Keys, other.Connections*fillFold)
	trial, err := newRoom(&other, r.redis, r.keys.Prefix+"w", r.rule().Algorithm)
	if err != nil {
		return memory{}, err
	}
	err = trial.apart(func(own *room) error {
		return errors.Join(own.fillUpToNow(ctx, 1, func(float64) {}), measure.Remove(ctx, own.redis,
			own.keys.Prefix+":"))
	})
	if err != nil {
		return memory{}, err
	}
	settle(ctx, r.redis)
	before, err := measure.Memory(ctx, r.redis)
	told := err == nil
	err = r.apart(func(own *room) error { return own.fillUpToNow(ctx, r.cfg.Entries, progress) })
	if err != nil || !told {
		return memory{}, err
	}
	after, err := measure.Memory(ctx, r.redis)
	if err != nil {
		return memory{}, nil //nolint:nilerr // not every Redis tells its memory: the figure is left out
	}
	perKey := float64(after-before) / float64(r.cfg.Keys)
	perEntry := perKey / float64(r.cfg.Entries)
	return memory{&perKey, &perEntry}, nil
}

// apart does something in the room by a client of its own. When that is closed
// the server drops the buffers of its connections, which a fill makes grow by
// hundreds of kilobytes.
func (r *room) apart(do func(own *room) error) error {
	own := *r
	switch c := r.redis.(type) {
	case *redis.Client:
		o := *c.Options()
		o.MaxRetries = -1                 // Options has it as 0, which would mean three
		o.PushNotificationProcessor = nil // each client has its own
		own.redis = redis.NewClient(&o)
	case *redis.ClusterClient:
		o := *c.Options()
		o.MaxRetries, o.PushNotificationProcessor = -1, nil
		own.redis = redis.NewClusterClient(&o)
	default:
		return do(r)
	}
	defer own.redis.Close()
	return do(&own)
}

func (r *room) fillUpToNow(ctx context.Context, entries int, progress func(done float64)) error {
	now, err := serverMs(ctx, r.redis)
	if err != nil {
		return err
	}
	return r.fill(ctx, now, entries, progress)
}

// settle waits until the server has freed what was unlinked, which it does on
// the side: memory is to be read after.
func settle(ctx context.Context, c redis.UniversalClient) {
	for range 500 {
		if n, err := measure.Sum(ctx, c, "memory", "lazyfree_pending_objects"); err != nil || n == 0 {
			return
		}
		if !realClock.until(ctx, time.Now().Add(10*time.Millisecond)) {
			return
		}
	}
}
