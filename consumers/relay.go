package consumers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// Publisher puts transitions where subscribers find them. Publish keeps the
// order of each subject, sends again under the same ID where an outcome is
// unknown, and returns nil only when all are stored; it gives up with ctx.
type Publisher interface {
	Publish(ctx context.Context, transitions []api.Transition) error
}

// Relay publishes what waits in the outboxes: of each partition in order, by
// one relay at a time (lease.go). An entry leaves the outbox only after it is
// stored, so the relay remembers nothing: it always goes on from the beginning.
type Relay struct {
	redis, blocking redis.UniversalClient
	keys            *stream.Keys
	publisher       Publisher
	config          Config
	metrics         *Metrics
	log             *slog.Logger
	leases          *leases
	aside           *quarantine
}

// relayStep is how many transitions of a partition are in flight at most.
const relayStep = 500

func newRelay(c Config, q *quarantine) *Relay {
	return &Relay{redis: c.Redis, blocking: c.Blocking, keys: c.Keys, publisher: c.Publisher, config: c, metrics: c.Metrics, log: c.Log, aside: q,
		leases: &leases{redis: c.Redis, keys: c.Keys, owner: c.Consumer, ttl: c.LeaseTTL, log: c.Log, holds: map[int]*hold{}}}
}

// Run relays until ctx ends, then empties the outboxes it holds, while work lasts.
func (r *Relay) Run(ctx, work context.Context) {
	leaseCtx, stopLeases := context.WithCancel(work)
	defer stopLeases()
	var running sync.WaitGroup
	running.Go(func() { r.leases.run(leaseCtx) })
	var lanes sync.WaitGroup
	for _, parts := range stream.Lanes(r.redis, r.keys) {
		lanes.Go(func() { r.runLane(ctx, work, parts) })
	}
	lanes.Wait()
	stopLeases()
	running.Wait()
}

func (r *Relay) runLane(ctx, work context.Context, parts []int) {
	var wait backoff
	for {
		stopping := ctx.Err() != nil
		held := r.leases.held()
		var streams []string
		byName := map[string]int{}
		open := r.aside.without(work, parts)
		for _, p := range open {
			if _, ok := held[p]; ok {
				streams = append(streams, r.keys.Outbox(p))
				byName[r.keys.Outbox(p)] = p
			}
		}
		if len(streams) == 0 {
			if stopping || !pause(ctx, min(50*time.Millisecond, r.config.LeaseTTL/6)) {
				return
			}
			continue
		}
		block := r.config.Block
		if stopping {
			block = -1 // what is there, without waiting
		}
		got, err := r.blocking.XRead(work, &redis.XReadArgs{Streams: append(streams, zeros(len(streams))...), Count: relayStep, Block: block}).Result()
		switch {
		case errors.Is(err, redis.Nil):
			if stopping {
				return
			}
			continue
		case err != nil && strings.HasPrefix(err.Error(), "UNBLOCKED"):
			continue
		case err != nil:
			if work.Err() != nil {
				return
			}
			if stream.IsRefusal(err) {
				if aside, _ := r.aside.look(work, open...); aside {
					continue
				}
			}
			r.log.Warn("reading the outboxes failed, trying again", "error", err)
			if !wait.wait(work) {
				return
			}
			continue
		}
		var publishing sync.WaitGroup
		var mu sync.Mutex
		failed := false
		for _, s := range got {
			p := byName[s.Stream]
			publishing.Go(func() {
				// The lease's end stops it, and so does the end of all work.
				ctx, cancel := context.WithCancel(held[p])
				defer cancel()
				defer context.AfterFunc(work, cancel)()
				if err := r.publish(ctx, p, s.Messages); err != nil {
					mu.Lock()
					failed = true
					mu.Unlock()
					if work.Err() == nil {
						r.log.Warn("relaying stopped midway, going on from the first unpublished transition", "partition", p, "error", err)
					}
				}
			})
		}
		publishing.Wait()
		if !failed {
			wait.reset()
		} else if !wait.wait(work) {
			return
		}
	}
}

// publish stores the transitions, then takes them out of the outbox.
func (r *Relay) publish(ctx context.Context, p int, entries []redis.XMessage) error {
	transitions := make([]api.Transition, 0, len(entries))
	var strange []lua.DeadLetter
	for _, e := range entries {
		t, err := decodeTransition(e)
		if err != nil {
			// None of ours wrote it. NATS may refuse it for ever, and the others wait behind it.
			strange = append(strange, lua.DeadLetter{ID: e.ID, Reason: "outbox: " + err.Error(), Body: body(stream.Message{Values: e.Values})})
			continue
		}
		t.ID = t.MessageID(r.keys.Prefix)
		transitions = append(transitions, t)
	}
	if err := r.publisher.Publish(ctx, transitions); err != nil {
		return err
	}
	if err := r.bury(ctx, p, strange); err != nil {
		return err
	}
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	if err := r.redis.XDel(ctx, r.keys.Outbox(p), ids...).Err(); err != nil {
		return fmt.Errorf("taking %d published transitions out of %s: %w", len(ids), r.keys.Outbox(p), err)
	}
	for _, t := range transitions {
		r.metrics.transition(t)
	}
	return nil
}

// bury puts entries aside that cannot be published. Where the dead stream takes
// nothing (it is of another type) the log alone has them.
func (r *Relay) bury(ctx context.Context, p int, letters []lua.DeadLetter) error {
	for _, l := range letters {
		err := r.redis.XAdd(ctx, &redis.XAddArgs{Stream: r.keys.Dead(p), MaxLen: deadKept, Approx: true,
			Values: []any{"event", l.ID, "reason", l.Reason, "body", l.Body}}).Err()
		if err != nil && !stream.IsRefusal(err) {
			return fmt.Errorf("putting %s of %s aside: %w", l.ID, r.keys.Outbox(p), err)
		}
		r.log.Error("an outbox entry is no transition, it goes to the dead stream", "stream", r.keys.Outbox(p), "id", l.ID, "reason", l.Reason, "body", l.Body, "error", err)
		r.metrics.outboxDead.Inc()
	}
	return nil
}

// decodeTransition reads what levels.lua wrote; an error says why none of ours did.
func decodeTransition(e redis.XMessage) (api.Transition, error) {
	text := func(name string) string {
		s, _ := e.Values[name].(string)
		return s
	}
	var bad error
	number := func(name string) int64 {
		n, err := strconv.ParseInt(text(name), 10, 64)
		if err != nil && bad == nil {
			bad = fmt.Errorf("%w: field %q is %s, expected an integer", api.ErrBadTransition, name, api.Shorten(text(name)))
		}
		return n
	}
	flags := text("flags")
	t := api.Transition{
		Rule: text("rule"), Key: text("key"), State: api.State(text("state")), Level: int(number("level")),
		Limit: number("limit"), WindowMs: number("window"), Used: number("used"), AtMs: number("at"),
		SinceMs: number("since"), UntilMs: number("until"), ExpiresMs: number("expires"),
		Shadow: strings.Contains(flags, "s"), Renewal: strings.Contains(flags, "r"),
	}
	if bad == nil {
		bad = t.Validate()
	}
	return t, bad
}

func zeros(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "0-0"
	}
	return out
}
