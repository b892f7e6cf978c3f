package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// DefaultRetention is how long all workers may be stopped without losing an event.
const DefaultRetention = 10 * time.Minute

// MinRetention is the shortest retention.
const MinRetention = time.Second

// Log appends events. Its client must not retry (MaxRetries: -1; on a Cluster
// NewCluster): after a lost reply, a retry would append an event twice, without an error. The client must keep to
// the deadlines of contexts (ContextTimeoutEnabled: true). Each append trims events that are older than the retention
// by this machine's clock. If that clock is ahead by as much as the retention, appends delete unread events.
type Log struct {
	redis     redis.UniversalClient
	keys      *Keys
	retention time.Duration
	now       func() time.Time
	verified  atomic.Bool // see Verify
}

// NewLog returns a Log. It returns an error for a retention below MinRetention, and for a
// client that retries or ignores deadlines. The caller closes the client.
func NewLog(c redis.UniversalClient, k *Keys, retention time.Duration) (*Log, error) {
	if c == nil || k == nil {
		return nil, errors.New("stream: a Redis client and keys are required")
	}
	if err := redisclient.RequireNoRetry(c); err != nil {
		return nil, err
	}
	if err := redisclient.RequireDeadlines(c); err != nil {
		return nil, err
	}
	if retention < MinRetention {
		return nil, fmt.Errorf("retention %s: expected at least %s", retention, MinRetention)
	}
	return &Log{redis: c, keys: k, retention: retention, now: time.Now}, nil
}

// Outcome is the result of appending events. Each event counts in exactly one of
// Appended, RefusedEvents and UnknownEvents.
type Outcome struct {
	Appended int // events that Redis has acknowledged
	Entries  int // entries for these events: fewer if events of one key were merged
	// Refused events are certainly not in the log. Unknown events may be in the log,
	// because their reply was lost. Merged events are one event here, with their sum.
	Refused, Unknown []api.Event
	// RefusedEvents and UnknownEvents are the numbers of refused and unknown events
	// before they were merged. Together with Appended they are all given events.
	RefusedEvents, UnknownEvents int
	// Err is nil if all were appended; it wraps api.ErrOutcomeUnknown if any is unknown.
	Err error
}

// Streams returns the template of the names of the streams that events are appended to.
func (l *Log) Streams() string { return l.keys.Prefix + ":{partition}:events" }

// Append writes the events in one pipeline per call and returns their outcome. It
// never sends an event twice. If ctx has ended, it sends nothing and refuses all events.
// It does the same, with ErrMismatch, if the prefix is in use with another number of
// partitions. Events must be valid.
func (l *Log) Append(ctx context.Context, events []api.Event) Outcome {
	if len(events) == 0 {
		return Outcome{}
	}
	items := make([]item, len(events))
	for i, e := range events {
		entry.DropBadTrace(&e)
		items[i] = item{e, 1}
	}
	return l.append(ctx, items)
}

// item is an event that was merged from one or more events of the same key.
type item struct {
	api.Event
	events int
}

func (l *Log) append(ctx context.Context, items []item) Outcome {
	if ctx.Err() != nil {
		return refused(items, context.Cause(ctx))
	}
	if err := l.Verify(ctx); err != nil {
		return refused(items, err)
	}
	byPartition := make([][]item, l.keys.Partitions)
	for _, it := range items {
		p := l.keys.Partition(it.Key)
		byPartition[p] = append(byPartition[p], it)
	}
	minID := strconv.FormatInt(l.now().Add(-l.retention).UnixMilli(), 10)
	pipe := l.redis.Pipeline()
	cmds := make([]redis.Cmder, 0, len(items))
	for p, list := range byPartition {
		if len(list) == 0 {
			continue
		}
		for _, e := range list {
			cmds = append(cmds, pipe.XAdd(ctx, &redis.XAddArgs{
				Stream: l.keys.Events(p), MinID: minID, Approx: true,
				Values: entry.Fields(e.Event),
			}))
		}
		pipe.PExpire(ctx, l.keys.Events(p), l.retention)
	}
	_, execErr := pipe.Exec(ctx)
	out := outcomeOf(slices.Concat(byPartition...), cmds)
	if out.Err == nil && execErr != nil {
		// Every event was appended, but an expiry was not set. The next append sets it.
		out.Err = fmt.Errorf("events were appended, but their expiry was not renewed: %w", execErr)
	}
	return out
}

// refused returns the outcome of items of which nothing was sent.
func refused(items []item, why error) Outcome {
	out := Outcome{Err: fmt.Errorf("appending: nothing was sent: %w", why)}
	for _, it := range items {
		out.Refused = append(out.Refused, it.Event)
		out.RefusedEvents += it.events
	}
	return out
}

// outcomeOf returns the outcome of the items, which cmds sent. A failed connection fails many commands, and is one
// error.
func outcomeOf(items []item, cmds []redis.Cmder) Outcome {
	var out Outcome
	var failures []error
	known := map[string]bool{} // the texts of failures
	for i, cmd := range cmds {
		err := cmd.Err()
		switch {
		case err == nil:
			out.Appended += items[i].events
			out.Entries++
			continue
		case redisclient.NotSent(err):
			out.Refused = append(out.Refused, items[i].Event)
			out.RefusedEvents += items[i].events
			err = fmt.Errorf("appending: %w", err)
		default:
			out.Unknown = append(out.Unknown, items[i].Event)
			out.UnknownEvents += items[i].events
			err = fmt.Errorf("appending: %w: %w", api.ErrOutcomeUnknown, err)
		}
		if !known[err.Error()] {
			known[err.Error()] = true
			failures = append(failures, err)
		}
	}
	out.Err = errors.Join(failures...)
	return out
}

// merge adds up the counts of events with the same key and the same values. A sum above the largest count
// of an event is split into several events. Events with ids are not merged, because each must count separately.
func merge(events []api.Event) []item {
	at := make(map[string]int, len(events)) // key, and its values → where the open sum is
	merged := make([]item, 0, len(events))
	for _, e := range events {
		if e.ID != "" {
			merged = append(merged, item{e, 1})
			continue
		}
		same := e.Key
		if len(e.Values) > 0 {
			same += fmt.Sprintf("\n%q", e.Values) // in the order of their names
		}
		if i, ok := at[same]; ok && merged[i].Count+e.Count <= api.MaxCount {
			merged[i].Count += e.Count
			merged[i].events++
			if merged[i].TraceParent == "" {
				merged[i].TraceParent, merged[i].TraceState = e.TraceParent, e.TraceState
			}
			continue
		}
		at[same] = len(merged)
		merged = append(merged, item{e, 1})
	}
	return merged
}
