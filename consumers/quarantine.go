package consumers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/stream"
)

// quarantine knows the partitions whose own keys are of another type than ours (a
// string in place of a stream, say). A command over several partitions fails for one
// of them, and a fold there fails for every event, so they are left out: nothing of
// theirs is buried or lost, and nobody else waits. What was read stays pending, and
// is claimed when somebody has mended the key.
type quarantine struct {
	redis   redis.UniversalClient
	keys    *stream.Keys
	every   time.Duration // between looks at what is left out
	metrics *Metrics
	log     *slog.Logger
	back    func() // a partition has come back

	mu    sync.Mutex
	until map[int]time.Time // partition → when to look again
}

// errAside is what ends work on a partition that is left out.
var errAside = errors.New("the partition is left out until its keys are mended")

// without gives those of the partitions that may be worked on. Whoever asks first
// after `every` looks at a partition again.
func (q *quarantine) without(ctx context.Context, parts []int) []int {
	q.mu.Lock()
	if len(q.until) == 0 {
		q.mu.Unlock()
		return parts
	}
	var again []int
	for _, p := range parts {
		if at, aside := q.until[p]; aside && time.Now().After(at) {
			q.until[p] = time.Now().Add(q.every)
			again = append(again, p)
		}
	}
	q.mu.Unlock()
	if len(again) > 0 {
		if _, err := q.look(ctx, again...); err != nil && ctx.Err() == nil {
			q.log.Warn("looking at partitions that are left out failed, trying again", "error", err)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	open := make([]int, 0, len(parts))
	for _, p := range parts {
		if _, aside := q.until[p]; !aside {
			open = append(open, p)
		}
	}
	return open
}

// look asks Redis what the keys of partitions are, and says whether any of them is
// to be left out. Call it when Redis has refused something.
func (q *quarantine) look(ctx context.Context, parts ...int) (aside bool, err error) {
	pipe := q.redis.Pipeline()
	asked := make(map[int][]redis.Cmder, len(parts))
	for _, p := range parts {
		asked[p] = []redis.Cmder{
			pipe.XLen(ctx, q.keys.Events(p)), pipe.XLen(ctx, q.keys.Outbox(p)), pipe.HLen(ctx, q.keys.Levels(p)),
			pipe.ZCard(ctx, q.keys.Due(p)), pipe.ZCard(ctx, q.keys.IDs(p)),
		}
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for _, p := range parts {
		broken, failed := "", error(nil)
		for _, cmd := range asked[p] {
			switch e := cmd.Err(); {
			case e == nil:
			case stream.IsWrongType(e):
				broken = fmt.Sprint(cmd.Args()[1])
			default:
				failed = e
			}
		}
		switch {
		case broken != "":
			q.leave(p, broken)
			aside = true
		case failed != nil: // unknown: it stays what it was
			err = errors.Join(err, fmt.Errorf("looking at the keys of partition %d: %w", p, failed))
		default:
			q.take(p)
		}
	}
	return aside, err
}

func (q *quarantine) leave(p int, key string) {
	q.mu.Lock()
	_, before := q.until[p]
	q.until[p] = time.Now().Add(q.every)
	q.mu.Unlock()
	if !before {
		q.metrics.aside.WithLabelValues(label(p)).Set(1)
		q.log.Error("a key of a partition is of another type than ours, the partition is left out until that is mended", "partition", p, "key", key)
	}
}

func (q *quarantine) take(p int) {
	q.mu.Lock()
	_, before := q.until[p]
	delete(q.until, p)
	q.mu.Unlock()
	if before {
		q.metrics.aside.WithLabelValues(label(p)).Set(0)
		q.log.Info("a partition that was left out is worked on again", "partition", p)
		q.back()
	}
}
