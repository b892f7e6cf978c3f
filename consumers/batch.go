package consumers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// deadKept is about how many dead letters a partition keeps.
const deadKept = 10_000

// folder takes batches from reading or claiming to their end. It is safe to use
// from several goroutines.
type folder struct {
	redis   redis.UniversalClient
	keys    *stream.Keys
	counter *windows.Redis
	rules   func() *windows.Rules
	metrics *Metrics
	log     *slog.Logger
	aside   *quarantine
}

// fold sees a batch through until each of its events is acknowledged, trying
// again for as long as ctx allows: sending a fold again is safe. On an error (ctx
// has ended, the partition is left out) events stay pending for somebody to claim.
func (f *folder) fold(ctx context.Context, b stream.Batch) error {
	if len(b.Messages) == 0 {
		return nil
	}
	err := f.settle(ctx, b)
	if stream.IsRefusal(err) {
		aside, lookErr := f.aside.look(ctx, b.Partition)
		if aside {
			err = fmt.Errorf("%w: %w", errAside, err)
		}
		err = errors.Join(err, lookErr)
	}
	return err
}

func (f *folder) settle(ctx context.Context, b stream.Batch) error {
	events, letters := f.decode(b)
	start := time.Now()
	unmatched, err := f.count(ctx, b.Partition, events)
	if err != nil {
		return err
	}
	f.metrics.batchEvents.Observe(float64(len(b.Messages)))
	f.metrics.foldSeconds.Observe(time.Since(start).Seconds())
	if len(unmatched) > 0 {
		err := f.persist(ctx, "acknowledging unmatched events", func() error {
			n, err := f.redis.XAck(ctx, f.keys.Events(b.Partition), stream.Group, unmatched...).Result()
			f.metrics.unmatched.Add(float64(n))
			return err
		})
		if err != nil {
			return err
		}
	}
	return f.bury(ctx, b.Partition, letters)
}

func (f *folder) decode(b stream.Batch) (events []windows.Event, letters []lua.DeadLetter) {
	events = make([]windows.Event, 0, len(b.Messages))
	for _, m := range b.Messages {
		e, err := m.Decode()
		if err != nil {
			letters = append(letters, lua.DeadLetter{ID: m.ID, Reason: err.Error(), Body: body(m)})
			continue
		}
		events = append(events, windows.Event{ID: m.ID, Ms: m.Ms(), Key: e.Key, Count: e.Count, Given: e.ID})
	}
	return events, letters
}

// count folds events and gives the IDs of those that no rule matches. Where the
// script refuses a batch, and not for the type of a key, it narrows down on the
// event that does it and buries that one alone.
func (f *folder) count(ctx context.Context, p int, events []windows.Event) (unmatched []string, err error) {
	if len(events) == 0 {
		return nil, nil
	}
	var folded windows.Folded
	var refused error
	err = f.persist(ctx, "folding", func() error {
		folded, unmatched, err = f.counter.Fold(ctx, p, f.rules(), events)
		if stream.IsRefusal(err) {
			refused = err
			return nil
		}
		return err
	})
	if refused != nil {
		aside, lookErr := f.aside.look(ctx, p)
		// Scripts take a counter of any type: WRONGTYPE is one of the partition's own
		// keys, also where somebody has mended it meanwhile.
		if aside || lookErr != nil || stream.IsWrongType(refused) {
			return nil, errors.Join(refused, lookErr)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case refused != nil && len(events) == 1:
		e := events[0]
		letter := lua.DeadLetter{ID: e.ID, Reason: refused.Error(), Body: body(stream.Message{Values: map[string]any{"key": e.Key, "count": e.Count}})}
		return nil, f.bury(ctx, p, []lua.DeadLetter{letter})
	case refused != nil:
		f.log.Warn("a fold was refused, looking for the event that does it", "partition", p, "events", len(events), "error", refused)
		left, err := f.count(ctx, p, events[:len(events)/2])
		if err != nil {
			return nil, err
		}
		right, err := f.count(ctx, p, events[len(events)/2:])
		return append(left, right...), err
	}
	f.metrics.folded.Add(float64(folded.Folded))
	f.metrics.late.Add(float64(folded.Late))
	f.metrics.gone.Add(float64(folded.Gone))
	f.metrics.again.Add(float64(folded.Again))
	f.metrics.merged.Add(float64(folded.Merged))
	f.metrics.unreadable.Add(float64(folded.Unreadable))
	return unmatched, nil
}

// bury acknowledges events that cannot be counted and keeps them for a person to see.
func (f *folder) bury(ctx context.Context, p int, letters []lua.DeadLetter) error {
	if len(letters) == 0 {
		return nil
	}
	f.log.Warn("events cannot be counted, they go to the dead stream", "stream", f.keys.Dead(p), "events", len(letters), "first", letters[0].ID, "reason", letters[0].Reason)
	err := f.persist(ctx, "burying", func() error {
		n, err := lua.Bury(ctx, f.redis, f.keys.Events(p), f.keys.Dead(p), stream.Group, deadKept, letters)
		f.metrics.dead.Add(float64(n))
		return err
	})
	if stream.IsRefusal(err) { // no reason to hold up what can be counted
		f.log.Error("events cannot be buried, they stay pending", "stream", f.keys.Dead(p), "events", len(letters), "error", err)
		return nil
	}
	return err
}

// lost records events that were trimmed before anybody counted them.
func (f *folder) lost(ctx context.Context, p int, ids []string) {
	f.metrics.trimmed.Add(float64(len(ids)))
	f.log.Error("events were trimmed before they were counted: the workers were away for longer than the retention",
		"stream", f.keys.Events(p), "events", len(ids), "first", ids[0])
	err := f.redis.XAdd(ctx, &redis.XAddArgs{Stream: f.keys.Dead(p), MaxLen: deadKept, Approx: true,
		Values: []any{"event", ids[0], "reason", fmt.Sprintf("%d events were trimmed after they were read, before they were counted", len(ids)), "body", strings.Join(ids, " ")}}).Err()
	if err != nil {
		f.log.Error("the loss could not be noted", "stream", f.keys.Dead(p), "error", err)
	}
}

// lookForGap finds events of partition p that were trimmed unread.
func (f *folder) lookForGap(ctx context.Context, p int) error {
	n, err := lua.Gap(ctx, f.redis, f.keys.Events(p), f.keys.Dead(p), stream.Group, deadKept)
	if err != nil || n <= 0 {
		return err
	}
	f.metrics.trimmed.Add(float64(n))
	f.log.Error("events were trimmed before they were read: the workers were away for longer than the retention",
		"stream", f.keys.Events(p), "events", n)
	return nil
}

// persist tries until do succeeds, Redis refuses it, or ctx ends.
func (f *folder) persist(ctx context.Context, what string, do func() error) error {
	var wait backoff
	for {
		err := do()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, errors.Join(ctx.Err(), err))
		}
		f.metrics.failures.Inc()
		if stream.IsRefusal(err) {
			return fmt.Errorf("%s: %w", what, err)
		}
		f.log.Warn(what+" failed, trying again", "error", err)
		if !wait.wait(ctx) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// body words a message for the dead stream, cut where it is very long.
func body(m stream.Message) string {
	text, err := json.Marshal(m.Values)
	if err != nil {
		text = fmt.Appendf(nil, "%v", m.Values)
	}
	if len(text) > 4096 {
		text = append(text[:4096:4096], "…"...)
	}
	return string(text)
}
