package consumers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

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
	overridden *overridden  // of the sweeper
	activity   Activity     // may be nil
	tracer     trace.Tracer // nil: nothing is traced
}

// fold sees a batch through until each of its events is acknowledged, trying
// again for as long as ctx allows: sending a fold again is safe. On an error (ctx
// has ended, the partition is quarantined) events stay pending for somebody to claim.
func (f *folder) fold(ctx context.Context, b eventlog.Batch) error {
	if len(b.Messages) == 0 {
		return nil
	}
	events, letters := f.decode(b)
	start := time.Now()
	traced, spans, parent := f.startFold(ctx, b)
	unmatched, err := f.count(traced, windows.Batch{Partition: b.Partition, Events: events, TraceParent: parent})
	spans.end(err)
	if err == nil {
		f.observe(len(b.Messages), start)
		err = f.finish(ctx, b.Partition, unmatched, letters)
	}
	return f.examine(ctx, b.Partition, err)
}

// foldTogether is fold for batches of several partitions of one server, in one step.
// errs[i] is what became of batches[i]. Where Redis refuses it, each is folded by itself
// (what was counted has left): so a partition with a key of another type, or an event
// that makes the script fail, keeps none of the others.
func (f *folder) foldTogether(ctx context.Context, batches []eventlog.Batch) (errs []error) {
	errs = make([]error, len(batches))
	var refusal, err error
	if len(batches) > 1 {
		refusal, err = f.foldCall(ctx, batches, errs)
	}
	for i, b := range batches {
		switch {
		case err != nil:
			errs[i] = err
		case refusal != nil || len(batches) == 1:
			errs[i] = f.fold(ctx, b)
		}
	}
	return errs
}

// foldCall folds batches in one step and sees each through. refusal is Redis's, and err any
// other reason for which not all was counted.
func (f *folder) foldCall(ctx context.Context, batches []eventlog.Batch, errs []error) (refusal, err error) {
	folds := make([]windows.Batch, len(batches))
	letters := make([][]deadLetter, len(batches))
	messages := 0
	for i, b := range batches {
		folds[i].Partition, messages = b.Partition, messages+len(b.Messages)
		folds[i].Events, letters[i] = f.decode(b)
	}
	start := time.Now()
	traced, spans, parent := f.startFold(ctx, batches...)
	for i := range folds {
		folds[i].TraceParent = parent
	}
	unmatched, refusal, err := f.send(traced, folds)
	spans.end(errors.Join(err, refusal))
	if err != nil || refusal != nil {
		return refusal, err
	}
	f.observe(messages, start)
	for i, b := range batches {
		f.overridden.blockedByPattern(f.rules(), folds[i].Events)
		errs[i] = f.examine(ctx, b.Partition, f.finish(ctx, b.Partition, unmatched[i], letters[i]))
	}
	return nil, nil
}

func (f *folder) observe(events int, start time.Time) {
	f.metrics.batchEvents.Observe(float64(events))
	f.metrics.foldSeconds.Observe(time.Since(start).Seconds())
}

// examine looks, where err is a refusal, whether the partition's keys are the reason.
func (f *folder) examine(ctx context.Context, p int, err error) error {
	if redisclient.IsRefusal(err) {
		quarantined, lookErr := f.quarantine.examine(ctx, p)
		if quarantined {
			err = fmt.Errorf("%w: %w", errQuarantined, err)
		}
		err = errors.Join(err, lookErr)
	}
	return err
}

// finish acknowledges the events of a batch that were not counted.
func (f *folder) finish(ctx context.Context, p int, unmatched []string, letters []deadLetter) error {
	if len(unmatched) > 0 {
		err := f.persist(ctx, "acknowledging unmatched events", func() error {
			n, err := f.redis.XAck(ctx, f.keys.Events(p), eventlog.Group, unmatched...).Result()
			f.metrics.unmatched.Add(float64(n))
			return err
		})
		if err != nil {
			return err
		}
	}
	return f.deadLetter(ctx, p, letters)
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
		events = append(events, windows.Event{ID: m.ID, Ms: m.Ms(), Key: e.Key, Count: e.Count, ProducerID: e.ID})
	}
	return events, letters
}

// count folds events and gives the IDs of those that no rule matches. Where the
// script refuses a batch, and not for the type of a key, it narrows down on the
// event that does it, and makes that one alone a dead letter.
func (f *folder) count(ctx context.Context, b windows.Batch) (unmatched []string, err error) {
	p, events := b.Partition, b.Events
	if len(events) == 0 {
		return nil, nil
	}
	sent, refusal, err := f.send(ctx, []windows.Batch{b})
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
		if e.ProducerID != "" {
			fields["id"] = e.ProducerID
		}
		return nil, f.deadLetter(ctx, p, []deadLetter{letterOf(entry.Message{ID: e.ID, Values: fields}, refused,
			refusal.Error())})
	case refusal != nil:
		f.log.Warn("a fold was refused, looking for the event that causes it", "partition", p, "events", len(events),
			"error", refusal)
		first, second := b, b
		first.Events, second.Events = events[:len(events)/2], events[len(events)/2:]
		left, err := f.count(ctx, first)
		if err != nil {
			return nil, err
		}
		right, err := f.count(ctx, second)
		return append(left, right...), err
	}
	return sent[0], nil
}

// send folds batches with one script call and gives, for each, the IDs of events that no
// rule matches. It tries until Redis answers; refusal is its answer where it refuses. Then
// some may have been counted, and all are to be folded again.
func (f *folder) send(ctx context.Context, batches []windows.Batch) (unmatched [][]string, refusal, err error) {
	err = f.persist(ctx, "folding", func() error {
		folded, sent, err := f.counter.FoldBatches(ctx, f.rules(), batches)
		unmatched = sent
		f.observeFolded(folded)
		if redisclient.IsRefusal(err) {
			refusal = err
			return nil
		}
		return err
	})
	if err != nil || refusal != nil {
		return nil, refusal, err
	}
	return unmatched, nil, nil
}

func (f *folder) observeFolded(folded windows.Folded) {
	f.metrics.folded.Add(float64(folded.Folded))
	f.metrics.late.Add(float64(folded.Late))
	f.metrics.alreadyCounted.Add(float64(folded.AlreadyCounted))
	f.metrics.duplicate.Add(float64(folded.Duplicate))
	f.metrics.merged.Add(float64(folded.Merged))
	f.metrics.corruptCounters.Add(float64(folded.Corrupt))
	f.record(folded.Keys)
}

// record notes what each rule and key had of the events that were folded.
func (f *folder) record(keys []windows.FoldedKey) {
	for i := 0; i < len(keys); {
		rule, events, units := keys[i].Rule, int64(0), int64(0)
		for ; i < len(keys) && keys[i].Rule == rule; i++ {
			events, units = events+keys[i].Events, units+keys[i].Units
			if f.activity != nil {
				f.activity.Events(rule, keys[i].Key, keys[i].Events, keys[i].Units)
			}
		}
		f.metrics.ruleEvents.WithLabelValues(rule).Add(float64(events))
		f.metrics.ruleUnits.WithLabelValues(rule).Add(float64(units))
	}
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
