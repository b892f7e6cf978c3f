package consumers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// Publisher stores transitions for subscribers. Publish keeps the order of each subject, sends again under the same
// ID if an outcome is unknown, and returns nil only when all are stored; it gives up when ctx ends.
type Publisher interface {
	// The first `resent` transitions may have been sent before, by this relay or an earlier one.
	Publish(ctx context.Context, transitions []api.Transition, resent int) error
}

// relay publishes the entries of the outboxes: those of each partition in order, by one relay at a time (lock.go). An
// entry leaves the outbox only after it is stored. So a relay needs no memory: it always starts at the first entry of
// the outbox.
type relay struct{ *shared }

// relayStep is how many transitions of a partition may be in flight at most.
const relayStep = 500

// run relays the outboxes of a shard until ctx ends, then empties those that it holds, while work lasts.
func (r *relay) run(ctx, work context.Context, parts []int) {
	var wait backoff
	for {
		block := r.Block
		stopping := ctx.Err() != nil
		if stopping {
			block = -1 // read what is there, without waiting
		}
		open := r.quarantine.open(work, parts)
		outboxes, err := r.outboxes(work, open)
		var got []redis.XStream
		if err == nil && len(outboxes) > 0 {
			got, err = r.read(work, slices.Collect(maps.Keys(outboxes)), block)
		}
		if err == nil {
			r.outages.note("reading the outboxes", parts[0], nil)
			err = r.publishAll(got, outboxes)
		}
		switch {
		case r.quarantine.explains(work, err, open...):
		case err == nil && len(got) == 0 && stopping, work.Err() != nil:
			return
		case err != nil:
			r.outages.note("reading the outboxes", parts[0], err)
			if !wait.wait(work) {
				return
			}
		case len(outboxes) == 0:
			if !pause.For(ctx, min(50*time.Millisecond, r.LockTTL/6)) {
				return
			}
		default:
			wait.reset()
		}
	}
}

// outboxes returns the outboxes of those open partitions that this process holds: name → lock. For a new lock, it
// notes the newest entry: the relay that had the lock before may have sent all entries up to it.
func (r *relay) outboxes(ctx context.Context, open []int) (map[string]*heldLock, error) {
	held, outboxes := r.locks.held(), map[string]*heldLock{}
	for _, p := range open {
		h, name := held[p], r.Keys.Outbox(p)
		if h == nil {
			continue
		}
		outboxes[name] = h
		if h.sent != "" {
			continue
		}
		newest, err := r.newestInOutbox(ctx, p, "+")
		if err != nil {
			return nil, err
		}
		h.sent = newest
	}
	return outboxes, nil
}

// noEntry is an id below that of each entry.
const noEntry = "0-0"

// newestInOutbox returns the id of the newest entry in the outbox of partition p up to the id `last`, or noEntry. With
// an error, it returns last.
func (s *shared) newestInOutbox(ctx context.Context, p int, last string) (string, error) {
	newest, err := s.Redis.XRevRangeN(ctx, s.Keys.Outbox(p), last, "-", 1).Result()
	if err != nil && !redisclient.IsRefusal(err) {
		return last, fmt.Errorf("reading %s: %w", s.Keys.Outbox(p), err)
	}
	if len(newest) == 0 {
		return noEntry, nil
	}
	return newest[0].ID, nil
}

// read returns the entries that wait in outboxes, or nothing if none comes in time.
func (r *relay) read(ctx context.Context, streams []string, block time.Duration) ([]redis.XStream, error) {
	got, err := r.Blocking.XRead(ctx, &redis.XReadArgs{Streams: streams, ID: noEntry, Count: relayStep,
		Block: block}).Result()
	if errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "UNBLOCKED") {
		return nil, nil
	}
	return got, err
}

// publishAll publishes the entries that were read from several outboxes, each under its own lock, and returns the
// first error.
func (r *relay) publishAll(got []redis.XStream, outboxes map[string]*heldLock) error {
	var publishing errgroup.Group
	for _, s := range got {
		publishing.Go(func() error { return r.publish(outboxes[s.Stream], s.Messages) })
	}
	return publishing.Wait()
}

// publish stores the transitions, then takes them out of the outbox. All of this is under the lock: it ends when the
// lock ends, and when all work ends.
func (r *relay) publish(lock *heldLock, entries []redis.XMessage) error {
	p := lock.partition
	transitions, resent := make([]api.Transition, 0, len(entries)), 0
	var letters []deadLetter
	for _, e := range entries {
		t, err := decodeTransition(e)
		if err != nil {
			// The entry is foreign. NATS may refuse it forever, and the other entries would wait behind it.
			letters = append(letters, letterOf(entry.Message{ID: e.ID, Values: e.Values}, outbox,
				"outbox: "+err.Error()))
			continue
		}
		t.ID = t.MessageID(r.Keys.Prefix)
		transitions = append(transitions, t)
		if entry.CompareIDs(e.ID, lock.sent) <= 0 {
			resent = len(transitions)
		}
	}
	if last := entries[len(entries)-1].ID; entry.CompareIDs(last, lock.sent) > 0 {
		lock.sent = last
	}
	if err := r.Publisher.Publish(lock, transitions, resent); err != nil {
		return err
	}
	r.observe(p, transitions)
	if err := r.dead.ofOutbox(lock, p, letters); err != nil {
		return err
	}
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	if err := r.Redis.XDel(lock, r.Keys.Outbox(p), ids...).Err(); err != nil {
		return fmt.Errorf("taking %d published transitions out of %s: %w", len(ids), r.Keys.Outbox(p), err)
	}
	for _, t := range transitions {
		r.Metrics.transition(t)
	}
	return nil
}

// observe records how long the throttle decisions of partition p took that have just been stored.
func (r *relay) observe(p int, transitions []api.Transition) {
	now := r.Rules().ClockMs(p)
	for _, t := range transitions {
		if t.State == api.StateThrottled && !t.Renewal && !t.IsBlock() {
			r.Metrics.decisionSeconds.Observe(float64(max(0, now-t.SinceMs)) / 1000)
		}
	}
}

// decodeTransition reads an entry that levels.lua wrote; an error says why the entry is foreign.
func decodeTransition(e redis.XMessage) (api.Transition, error) {
	text := func(name string) string {
		s, _ := e.Values[name].(string)
		return s
	}
	var bad error
	number := func(name string) int64 {
		n, err := strconv.ParseInt(text(name), 10, 64)
		if err != nil && bad == nil {
			bad = fmt.Errorf("%w: field %q is %s, expected an integer", api.ErrBadTransition, name,
				api.Shorten(text(name)))
		}
		return n
	}
	flags := text("flags")
	t := api.Transition{
		Rule: text("rule"), Key: text("key"), State: api.State(text("state")), Level: int(number("level")),
		Limit: number("limit"), WindowMs: number("window"), Used: number("used"), Version: number("version"),
		AtMs:    number("at"),
		SinceMs: number("since"), UntilMs: number("until"), ExpiresMs: number("expires"),
		Shadow: strings.Contains(flags, "s"), Renewal: strings.Contains(flags, "r"),
		InFlight: strings.Contains(flags, "f"), Reason: text("reason"),
		TraceParent: text("traceparent"), TraceState: text("tracestate"),
	}
	if bad == nil {
		t.InForce, bad = api.ReadInForce(text)
	}
	if text("values") != "" && bad == nil {
		if err := json.Unmarshal([]byte(text("values")), &t.Values); err != nil {
			bad = fmt.Errorf(`%w: field "values" is %s: %w`, api.ErrBadTransition, api.Shorten(text("values")), err)
		}
	}
	if bad == nil {
		bad = t.Validate()
	}
	return t, bad
}
