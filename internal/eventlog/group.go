package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/stream"
)

// Group is the consumer group that all workers share.
const Group = "workers"

// Reader reads and claims the events of some partitions for one consumer of the
// group. A Reader is used by one goroutine at a time.
type Reader struct {
	redis    redis.UniversalClient
	keys     *stream.Keys
	consumer string
	parts    []int
	streams  []string // the events keys of parts, then as many ">"
	byName   map[string]int
}

// NewReader returns a Reader of the given partitions, which it reads with one
// command. On Redis Cluster they must share a slot, so there a Reader has one
// partition. The client is used for blocking commands: do not share its connections.
func NewReader(c redis.UniversalClient, k *stream.Keys, consumer string, partitions []int) *Reader {
	r := &Reader{redis: c, keys: k, consumer: consumer, byName: map[string]int{}}
	for _, p := range partitions {
		r.byName[k.Events(p)] = p
	}
	r.Take(partitions)
	return r
}

// Take sets which of its partitions Read and CreateGroups use from now on. A
// partition whose stream is of another type would make the others fail.
func (r *Reader) Take(partitions []int) {
	if slices.Equal(partitions, r.parts) {
		return
	}
	r.parts, r.streams = slices.Clone(partitions), make([]string, 0, 2*len(partitions))
	for _, p := range partitions {
		r.streams = append(r.streams, r.keys.Events(p))
	}
	for range partitions {
		r.streams = append(r.streams, ">")
	}
}

// Batch has the events that were read of one partition, in order.
type Batch struct {
	Partition int
	Messages  []entry.Message
}

// CreateGroups creates the missing groups of the partitions, from the stream's
// beginning, because no event may be skipped after an expiry. If it fails for one
// partition, it still creates the groups of the others.
func (r *Reader) CreateGroups(ctx context.Context) error {
	var failed error
	for _, p := range r.parts {
		err := r.redis.XGroupCreateMkStream(ctx, r.keys.Events(p), Group, "0").Err()
		if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
			failed = errors.Join(failed, fmt.Errorf("creating the group of %s: %w", r.keys.Events(p), err))
		}
	}
	return failed
}

// Read waits up to block for new events and returns up to count of each
// partition; no batch and no error if none came. If a stream and its group no
// longer exist (it expired, somebody deleted it, Redis restarted empty), the group
// is created again and Read returns no batch.
func (r *Reader) Read(ctx context.Context, count int, block time.Duration) ([]Batch, error) {
	got, err := r.redis.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: Group, Consumer: r.consumer, Streams: r.streams, Count: int64(count), Block: block,
	}).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return nil, nil
	case isGroupGone(err):
		return nil, r.CreateGroups(ctx)
	case err != nil:
		return nil, fmt.Errorf("reading events: %w", err)
	}
	batches := make([]Batch, 0, len(got))
	for _, s := range got {
		batches = append(batches, Batch{Partition: r.byName[s.Stream], Messages: messages(s.Messages)})
	}
	return batches, nil
}

// MayPend returns, in one round trip, the partitions that have events that were read and not yet acknowledged, and the
// partitions for which this is unknown: their group may not exist.
func (r *Reader) MayPend(ctx context.Context, parts []int) []int {
	pipe := r.redis.Pipeline()
	groups := make([]*redis.XInfoGroupsCmd, len(parts))
	for i, p := range parts {
		groups[i] = pipe.XInfoGroups(ctx, r.keys.Events(p))
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	var may []int
	for i, p := range parts {
		idle := func(g redis.XInfoGroup) bool { return g.Name == Group && g.Pending == 0 }
		if !slices.ContainsFunc(groups[i].Val(), idle) {
			may = append(may, p)
		}
	}
	return may
}

// Claim takes over up to count events of partition p that have been pending with a
// consumer for minIdle or longer, from cursor on ("0-0" to begin). It returns the
// cursor to continue with ("0-0": all were seen). Events that were trimmed are no longer pending.
func (r *Reader) Claim(ctx context.Context, p int, minIdle time.Duration, cursor string,
	count int) (b Batch, next string, err error) {
	b.Partition = p
	got, next, err := r.redis.XAutoClaim(ctx, &redis.XAutoClaimArgs{
		Stream: r.keys.Events(p), Group: Group, Consumer: r.consumer, MinIdle: minIdle, Start: cursor,
		Count: int64(count),
	}).Result()
	if isGroupGone(err) {
		return b, "0-0", r.CreateGroups(ctx)
	}
	if err != nil {
		return b, "0-0", fmt.Errorf("claiming from %s: %w", r.keys.Events(p), err)
	}
	b.Messages = messages(got)
	return b, next, nil
}

// isGroupGone reports whether the group must be created again after this error. If
// the key is removed while a reader is blocked, Redis 7.0 answers UNBLOCKED, and 7.2
// and later answer NOGROUP.
func isGroupGone(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return strings.HasPrefix(text, "NOGROUP") || strings.HasPrefix(text, "UNBLOCKED") ||
		strings.Contains(text, "no such key")
}

func messages(in []redis.XMessage) []entry.Message {
	out := make([]entry.Message, len(in))
	for i, m := range in {
		out[i] = entry.Message{ID: m.ID, Values: m.Values}
	}
	return out
}
