package consumers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// folder takes batches from reading or claiming to their end. It is safe to use
// from several goroutines.
type folder struct {
	redis      redis.UniversalClient
	keys       *stream.Keys
	counter    *windows.Redis
	rules      func() *windows.Rules
	metrics    *Metrics
	log        *slog.Logger
	quarantine *quarantine
	dead       *deadLetters
}

// fold sees a batch through until each of its events is acknowledged, trying
// again for as long as ctx allows: sending a fold again is safe. On an error (ctx
// has ended, the partition is quarantined) events stay pending for somebody to claim.
func (f *folder) fold(ctx context.Context, b eventlog.Batch) error {
	if len(b.Messages) == 0 {
		return nil
	}
	err := f.settle(ctx, b)
	if redisclient.IsRefusal(err) {
		quarantined, lookErr := f.quarantine.examine(ctx, b.Partition)
		if quarantined {
			err = fmt.Errorf("%w: %w", errQuarantined, err)
		}
		err = errors.Join(err, lookErr)
	}
	return err
}

func (f *folder) settle(ctx context.Context, b eventlog.Batch) error {
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
			n, err := f.redis.XAck(ctx, f.keys.Events(b.Partition), eventlog.Group, unmatched...).Result()
			f.metrics.unmatched.Add(float64(n))
			return err
		})
		if err != nil {
			return err
		}
	}
	return f.deadLetter(ctx, b.Partition, letters)
}

// decode gives the events of a batch that can be counted, and the letters of the others.
// A producer that computes the partition of a key wrongly would have the key counted
// and levelled in two places, of which each knows a part.
func (f *folder) decode(b eventlog.Batch) (events []windows.Event, letters []deadLetter) {
	events = make([]windows.Event, 0, len(b.Messages))
	for _, m := range b.Messages {
		e, err := m.Decode()
		if err != nil {
			letters = append(letters, letterOf(m, invalid, err.Error()))
			continue
		}
		if right := f.keys.Partition(e.Key); right != b.Partition {
			letters = append(letters, letterOf(m, misplaced, fmt.Sprintf(
				"wrong partition: appended to partition %d, the key belongs to partition %d (%s)", b.Partition, right,
				f.keys.Events(right))))
			continue
		}
		events = append(events, windows.Event{ID: m.ID, Ms: m.Ms(), Key: e.Key, Count: e.Count, Given: e.ID})
	}
	return events, letters
}

// count folds events and gives the IDs of those that no rule matches. Where the
// script refuses a batch, and not for the type of a key, it narrows down on the
// event that does it, and makes that one alone a dead letter.
func (f *folder) count(ctx context.Context, p int, events []windows.Event) (unmatched []string, err error) {
	if len(events) == 0 {
		return nil, nil
	}
	var folded windows.Folded
	var refusal error
	err = f.persist(ctx, "folding", func() error {
		folded, unmatched, err = f.counter.Fold(ctx, p, f.rules(), events)
		if redisclient.IsRefusal(err) {
			refusal = err
			return nil
		}
		return err
	})
	if refusal != nil {
		quarantined, lookErr := f.quarantine.examine(ctx, p)
		// Scripts take a counter of any type: WRONGTYPE is one of the partition's own
		// keys, also where somebody has fixed it meanwhile.
		if quarantined || lookErr != nil || redisclient.IsWrongType(refusal) {
			return nil, errors.Join(refusal, lookErr)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case refusal != nil && len(events) == 1:
		e := events[0]
		fields := map[string]any{"key": e.Key, "count": e.Count}
		if e.Given != "" {
			fields["id"] = e.Given
		}
		return nil, f.deadLetter(ctx, p, []deadLetter{letterOf(entry.Message{ID: e.ID, Values: fields}, refused,
			refusal.Error())})
	case refusal != nil:
		f.log.Warn("a fold was refused, looking for the event that causes it", "partition", p, "events", len(events),
			"error", refusal)
		left, err := f.count(ctx, p, events[:len(events)/2])
		if err != nil {
			return nil, err
		}
		right, err := f.count(ctx, p, events[len(events)/2:])
		return append(left, right...), err
	}
	f.metrics.folded.Add(float64(folded.Folded))
	f.metrics.late.Add(float64(folded.Late))
	f.metrics.alreadyCounted.Add(float64(folded.Gone))
	f.metrics.duplicate.Add(float64(folded.Again))
	f.metrics.merged.Add(float64(folded.Merged))
	f.metrics.corruptCounters.Add(float64(folded.Unreadable))
	return unmatched, nil
}

// deadLetter acknowledges events that cannot be counted and keeps them for a person to see.
func (f *folder) deadLetter(ctx context.Context, p int, letters []deadLetter) error {
	if len(letters) == 0 {
		return nil
	}
	f.log.Warn("events cannot be counted, they become dead letters",
		"stream", f.keys.Dead(p), "events", len(letters), "first", letters[0].ID, "reason", letters[0].Reason)
	err := f.persist(ctx, "writing dead letters", func() error { return f.dead.ofEvents(ctx, p, letters) })
	if redisclient.IsRefusal(err) { // no reason to hold up what can be counted
		f.log.Error("writing dead letters failed, the events stay pending", "stream", f.keys.Dead(p), "events",
			len(letters), "error", err)
		return nil
	}
	return err
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
		if redisclient.IsRefusal(err) {
			return fmt.Errorf("%s: %w", what, err)
		}
		f.log.Warn(what+" failed, trying again", "error", err)
		if !wait.wait(ctx) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}
