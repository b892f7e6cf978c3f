package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/replyguard"
	"github.com/streamcounter/streamcounter/stream"
)

// Group is the consumer group that all workers share.
const Group = "workers"

// Reader reads and claims the events of some partitions for one consumer of the
// group. A Reader is used by one goroutine at a time.
type Reader struct {
	redis      redis.UniversalClient
	keys       *stream.Keys
	consumer   string
	parts      []int
	streams    []string // the events keys of parts, then as many ">"
	byName     map[string]int
	readCount  int // how many events of each partition a read requests; halved if a reply is lost; 0: not set yet
	groupCount int // how many pending events are read at a time, at most claimGroup; 0: not set yet
}

// MaxEventBytes bounds the names and values of an event's fields, because each command that returns the event occupies
// Redis for longer the larger it is. A larger event is not counted.
const MaxEventBytes = 256 << 10

// ErrReplyLost is the error of a read whose reply was too large or too slow. Redis may have given its events to this
// consumer (Own).
var ErrReplyLost = errors.New("a reply with events was lost")

// claimStep bounds the events of one claim. It reads claimGroup of them at a time, fewer on a slow connection, until it
// has claimBytes.
const claimStep, claimGroup, claimBytes = 100, 8, 64 << 20

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

// Take sets which of its partitions Read and CreateGroups use from now on. Leave
// out a partition whose stream has the wrong type: Read would fail for all partitions.
func (r *Reader) Take(partitions []int) {
	if slices.Equal(partitions, r.parts) {
		return
	}
	r.parts, r.streams = slices.Clone(partitions), slices.Repeat([]string{">"}, 2*len(partitions))
	for i, p := range partitions {
		r.streams[i] = r.keys.Events(p)
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
// is created again and Read returns no batch. After ErrReplyLost the next reads bring fewer events.
func (r *Reader) Read(ctx context.Context, count int, block time.Duration) ([]Batch, error) {
	r.readCount = min(cmp.Or(r.readCount, count), count)
	got, err := r.redis.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: Group, Consumer: r.consumer, Streams: r.streams, Count: int64(r.readCount), Block: block,
	}).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return nil, nil
	case isGroupGone(err):
		return nil, r.CreateGroups(ctx)
	case err != nil:
		if isSlow(err) || errors.Is(err, replyguard.ErrTooLarge) {
			r.readCount = (r.readCount + 1) / 2
			err = fmt.Errorf("%w: %w", ErrReplyLost, err)
		}
		return nil, fmt.Errorf("reading events: %w", err)
	}
	r.readCount++
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

// Claim takes over events of partition p, up to count or claimStep, that have been pending with a
// consumer for minIdle or longer, from cursor on ("0-0" to begin). It returns the
// cursor to continue with ("0-0": all were seen). Events that were trimmed are no longer pending. If large events
// leave no room for others, the others stay pending with this consumer, and can be claimed again after minIdle.
func (r *Reader) Claim(ctx context.Context, p int, minIdle time.Duration, cursor string,
	count int) (b Batch, next string, err error) {
	ids, next, err := r.redis.XAutoClaimJustID(ctx, &redis.XAutoClaimArgs{
		Stream: r.keys.Events(p), Group: Group, Consumer: r.consumer, MinIdle: minIdle, Start: cursor,
		Count: int64(min(count, claimStep)),
	}).Result()
	return r.pending(ctx, p, ids, next, err)
}

// Own is like Claim, for the events that are pending with this consumer.
func (r *Reader) Own(ctx context.Context, p int, cursor string) (b Batch, next string, err error) {
	list, err := r.redis.XPendingExt(ctx, &redis.XPendingExtArgs{
		Stream: r.keys.Events(p), Group: Group, Consumer: r.consumer, Start: cursor, End: "+", Count: claimStep + 1,
	}).Result()
	next = "0-0"
	if len(list) > claimStep {
		list, next = list[:claimStep], list[claimStep].ID
	}
	ids := make([]string, len(list))
	for i, e := range list {
		ids[i] = e.ID
	}
	return r.pending(ctx, p, ids, next, err)
}

// pending reads pending events of partition p, each with its own reply. An event that is too large has no values, and
// the reason in Err. Trimmed events are left out. err is that of the command that found the events.
func (r *Reader) pending(ctx context.Context, p int, ids []string, cursor string, err error) (Batch, string, error) {
	b, name := Batch{Partition: p}, r.keys.Events(p)
	if isGroupGone(err) {
		return b, "0-0", r.CreateGroups(ctx)
	}
	size := 0
	for err == nil && len(ids) > 0 {
		if size >= claimBytes {
			cursor = ids[0]
			break
		}
		r.groupCount = min(cmp.Or(r.groupCount, claimGroup), claimGroup)
		group := ids[:min(r.groupCount, len(ids))]
		pipe := r.redis.Pipeline()
		entries := make([]*redis.XMessageSliceCmd, len(group))
		for i, id := range group {
			entries[i] = pipe.XRange(ctx, name, id, id)
		}
		Exec(ctx, r.redis, pipe)
		slow := slices.IndexFunc(entries, func(e *redis.XMessageSliceCmd) bool { return isSlow(e.Err()) })
		if r.groupCount++; slow >= 0 && len(group) > 1 {
			r.groupCount = len(group) / 2
			group, entries = group[:slow], entries[:slow]
		}
		ids = ids[len(group):]
		for i, e := range entries {
			if errors.Is(e.Err(), replyguard.ErrTooLarge) {
				b.Messages = append(b.Messages, tooLarge(group[i], e.Err()))
				continue
			}
			err = cmp.Or(err, e.Err())
			b.Messages = append(b.Messages, messages(e.Val())...)
			for _, m := range e.Val() {
				size += sizeOf(m.Values)
			}
		}
	}
	if err != nil {
		return Batch{Partition: p}, "0-0", fmt.Errorf("claiming from %s: %w", name, err)
	}
	return b, cursor, nil
}

// Exec sends the commands of a pipeline, which only read. Each has its own error. If a reply was too large, the replies
// after it were not read: these commands are sent again, one at a time.
func Exec(ctx context.Context, c redis.UniversalClient, pipe redis.Pipeliner) {
	list, _ := pipe.Exec(ctx)
	for _, cmd := range list {
		if errors.Is(cmd.Err(), replyguard.ErrTooLarge) {
			_ = c.Process(ctx, cmd)
		}
	}
}

// isSlow reports whether a reply did not come in time, although there is a connection.
func isSlow(err error) bool {
	reply, ok := errors.AsType[*net.OpError](err)
	return ok && reply.Op == "read" && reply.Timeout()
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

// messages converts what was read. An event that is too large has no values, and the reason in Err.
func messages(in []redis.XMessage) []entry.Message {
	out := make([]entry.Message, len(in))
	for i, m := range in {
		out[i] = entry.Message{ID: m.ID, Values: m.Values}
		if n := sizeOf(m.Values); n > MaxEventBytes {
			key, _ := m.Values["key"].(string)
			out[i] = tooLarge(m.ID, fmt.Errorf("%d bytes in its fields, expected at most %d; its key is %.40q", n,
				MaxEventBytes, key))
		}
	}
	return out
}

func tooLarge(id string, err error) entry.Message {
	return entry.Message{ID: id, Values: map[string]any{}, Err: fmt.Errorf("the event is too large: %w", err)}
}

func sizeOf(values map[string]any) (bytes int) {
	for field, value := range values {
		text, _ := value.(string)
		bytes += len(field) + len(text)
	}
	return bytes
}
