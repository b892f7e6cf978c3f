package consumers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// quarantine records the partitions that have a key of the wrong type (for example a string in place of a stream). A
// command over several partitions fails because of one such partition, and a fold there fails for every event. So
// no part of the Pool works on these partitions: none of their events becomes a dead letter or is lost, and
// the other partitions do not wait. Events that were read stay pending, and are claimed when somebody has fixed the
// key.
type quarantine struct {
	*shared
	onEnd func() // called when a partition is no longer quarantined

	mu    sync.Mutex
	until map[int]time.Time // partition → when to look again
}

// errQuarantined ends work on a partition.
var errQuarantined = errors.New("the partition is quarantined until its keys are fixed")

// open returns those of the partitions that are not quarantined. The first call after QuarantineFor examines a
// quarantined partition again.
func (q *quarantine) open(ctx context.Context, parts []int) []int {
	q.mu.Lock()
	if len(q.until) == 0 {
		q.mu.Unlock()
		return parts
	}
	var again []int
	for _, p := range parts {
		if at, quarantined := q.until[p]; quarantined && time.Now().After(at) {
			q.until[p] = time.Now().Add(q.QuarantineFor)
			again = append(again, p)
		}
	}
	q.mu.Unlock()
	if len(again) > 0 {
		if _, err := q.examine(ctx, again...); ctx.Err() == nil {
			q.outages.note("examining quarantined partitions", 0, err)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	open := make([]int, 0, len(parts))
	for _, p := range parts {
		if _, quarantined := q.until[p]; !quarantined {
			open = append(open, p)
		}
	}
	return open
}

// examine reads the types of partitions' own keys from Redis, and reports whether any partition is quarantined. Call
// it when Redis has refused a command.
func (q *quarantine) examine(ctx context.Context, parts ...int) (quarantined bool, err error) {
	for p, is := range eventlog.TypesOf(ctx, q.Redis, q.Keys, parts) {
		switch {
		case is.Wrong != "":
			q.begin(p, is.Wrong)
			quarantined = true
		case is.Err != nil: // unknown: the state does not change
			err = errors.Join(err, fmt.Errorf("looking at the keys of partition %d: %w", p, is.Err))
		default:
			q.end(p)
		}
	}
	return quarantined, err
}

// explains reports whether Redis refused a command because a key of these partitions has the wrong type. That partition
// is then quarantined, and the other partitions need not wait.
func (q *quarantine) explains(ctx context.Context, err error, parts ...int) bool {
	if !redisclient.IsRefusal(err) {
		return false
	}
	quarantined, _ := q.examine(ctx, parts...)
	return quarantined
}

func (q *quarantine) begin(p int, key string) {
	q.mu.Lock()
	_, before := q.until[p]
	q.until[p] = time.Now().Add(q.QuarantineFor)
	q.mu.Unlock()
	if !before {
		q.Metrics.quarantined.WithLabelValues(label(p)).Set(1)
		q.Log.Error("a foreign key has the wrong type, its partition is quarantined until the key is deleted",
			"partition", p, "key", key)
	}
}

func (q *quarantine) end(p int) {
	q.mu.Lock()
	_, before := q.until[p]
	delete(q.until, p)
	q.mu.Unlock()
	if before {
		q.Metrics.quarantined.WithLabelValues(label(p)).Set(0)
		q.Log.Info("a partition is no longer quarantined", "partition", p)
		q.onEnd()
	}
}
