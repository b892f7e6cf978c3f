package consumers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/stream"
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
type relay struct {
	redis, blocking redis.UniversalClient
	keys            *stream.Keys
	publisher       Publisher
	config          Config
	metrics         *Metrics
	log             *slog.Logger
	locks           *locks
	quarantine      *quarantine
	dead            *deadLetters
	outages         *outages
}

// relayStep is how many transitions of a partition may be in flight at most.
const relayStep = 500

func newRelay(c Config, q *quarantine, dead *deadLetters, down *outages) *relay {
	return &relay{redis: c.Redis, blocking: c.Blocking, keys: c.Keys, publisher: c.Publisher, config: c,
		metrics: c.Metrics, log: c.Log, quarantine: q, dead: dead, outages: down,
		locks: &locks{lua: dead.lua, keys: c.Keys, owner: c.Consumer, ttl: c.LockTTL, log: c.Log, outages: down,
			holds: map[int]*hold{}}}
}

// run relays until ctx ends, then empties the outboxes it holds, while work lasts.
func (r *relay) run(ctx, work context.Context) {
	lockCtx, stopLocks := context.WithCancel(work)
	defer stopLocks()
	var running sync.WaitGroup
	running.Go(func() { r.locks.run(lockCtx) })
	var shards sync.WaitGroup
	for _, parts := range eventlog.Shards(r.redis, r.keys.All()) {
		shards.Go(func() { r.runShard(ctx, work, parts) })
	}
	shards.Wait()
	stopLocks()
	running.Wait()
}

func (r *relay) runShard(ctx, work context.Context, parts []int) {
	var wait backoff
	attempts := map[int]*attempt{}
	for {
		stopping := ctx.Err() != nil
		held, open := r.locks.held(), r.quarantine.open(work, parts)
		streams, byName := r.outboxes(open, held)
		if err := r.begin(work, attempts, held, byName); err != nil {
			r.outages.note("reading the outboxes", parts[0], err)
			if !wait.wait(work) {
				return
			}
			continue
		}
		if len(streams) == 0 {
			r.outages.note("reading the outboxes", parts[0], nil)
			if stopping || !pause.For(ctx, min(50*time.Millisecond, r.config.LockTTL/6)) {
				return
			}
			continue
		}
		block := r.config.Block
		if stopping {
			block = -1 // read what is there, without waiting
		}
		got, err := r.read(work, streams, block)
		if err == nil {
			r.outages.note("reading the outboxes", parts[0], nil)
			if len(got) > 0 {
				err = r.publishAll(work, got, byName, held, attempts)
			}
		}
		if redisclient.IsRefusal(err) {
			if quarantined, _ := r.quarantine.examine(work, open...); quarantined {
				continue
			}
		}
		switch {
		case err == nil && len(got) == 0 && stopping, work.Err() != nil:
			return
		case err == nil:
			wait.reset()
			continue
		}
		r.outages.note("reading the outboxes", parts[0], err)
		if !wait.wait(work) {
			return
		}
	}
}

// outboxes names the outboxes of those open partitions that this process holds. byName: name → partition.
func (r *relay) outboxes(open []int, held map[int]context.Context) (streams []string, byName map[string]int) {
	byName = map[string]int{}
	for _, p := range open {
		if _, ok := held[p]; ok {
			streams = append(streams, r.keys.Outbox(p))
			byName[r.keys.Outbox(p)] = p
		}
	}
	return streams, byName
}

// read returns the entries that wait in outboxes, or nothing if none comes in time.
func (r *relay) read(ctx context.Context, streams []string, block time.Duration) ([]redis.XStream, error) {
	got, err := r.blocking.XRead(ctx, &redis.XReadArgs{Streams: append(streams, zeros(len(streams))...),
		Count: relayStep, Block: block}).Result()
	if errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "UNBLOCKED") {
		return nil, nil
	}
	return got, err
}

// publishAll publishes the entries that were read from several outboxes, each under its own lock, and returns the
// first error. byName: name of an outbox → partition.
func (r *relay) publishAll(work context.Context, got []redis.XStream, byName map[string]int,
	held map[int]context.Context, attempts map[int]*attempt) error {
	var publishing errgroup.Group
	for _, s := range got {
		p := byName[s.Stream]
		publishing.Go(func() error {
			// The context ends when the lock ends, and when all work ends.
			ctx, cancel := context.WithCancel(held[p])
			defer cancel()
			defer context.AfterFunc(work, cancel)()
			return r.publish(underLock{ctx, held[p]}, p, s.Messages, attempts[p])
		})
	}
	return publishing.Wait()
}

// underLock is done when its context is done. Its Err also fails as soon as the lock has ended.
type underLock struct {
	context.Context
	lock context.Context
}

func (u underLock) Err() error { return cmp.Or(u.Context.Err(), u.lock.Err()) }

// attempt is up to which entry an outbox may have been sent, by this relay or by one before it.
type attempt struct {
	lock context.Context // the hold for which upTo was read
	upTo string          // the ID of an entry
}

// begin notes, for each outbox whose lock is new, the newest entry: the relay that had the lock before may have sent
// all entries up to it.
func (r *relay) begin(ctx context.Context, attempts map[int]*attempt, held map[int]context.Context,
	outboxes map[string]int) error {
	for name, p := range outboxes {
		if attempts[p] != nil && attempts[p].lock == held[p] {
			continue
		}
		newest, err := r.redis.XRevRangeN(ctx, name, "+", "-", 1).Result()
		if err != nil && !redisclient.IsRefusal(err) {
			return fmt.Errorf("reading %s: %w", name, err)
		}
		attempts[p] = &attempt{lock: held[p], upTo: "0-0"}
		if len(newest) > 0 {
			attempts[p].upTo = newest[0].ID
		}
	}
	return nil
}

// publish stores the transitions, then takes them out of the outbox.
func (r *relay) publish(ctx context.Context, p int, entries []redis.XMessage, before *attempt) error {
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
		t.ID = t.MessageID(r.keys.Prefix)
		transitions = append(transitions, t)
		if entry.CompareIDs(e.ID, before.upTo) <= 0 {
			resent = len(transitions)
		}
	}
	if last := entries[len(entries)-1].ID; entry.CompareIDs(last, before.upTo) > 0 {
		before.upTo = last
	}
	if err := r.publisher.Publish(ctx, transitions, resent); err != nil {
		return err
	}
	r.observe(p, transitions)
	if err := r.dead.ofOutbox(ctx, p, letters); err != nil {
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

// observe records how long the throttle decisions of partition p took that have just been stored.
func (r *relay) observe(p int, transitions []api.Transition) {
	now := r.config.Rules().ClockMs(p)
	for _, t := range transitions {
		if t.State == api.StateThrottled && !t.Renewal && !t.IsBlock() {
			r.metrics.decisionSeconds.Observe(float64(max(0, now-t.SinceMs)) / 1000)
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

func zeros(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "0-0"
	}
	return out
}
