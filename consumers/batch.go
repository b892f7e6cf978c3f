package consumers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// fold counts batches with one script call and returns when each of their events is acknowledged: fold.lua
// acknowledges the events that it counts. The batches are of different partitions of one server. fold tries again for
// as long as ctx allows: sending a fold again is safe. errs[i] is the outcome of batches[i]. On an error (ctx has
// ended, the partition is quarantined) events stay pending, and another worker claims them.
func (w *worker) fold(ctx context.Context, batches ...eventlog.Batch) (errs []error) {
	folds, letters := make([]counters.Batch, len(batches)), make([][]deadLetter, len(batches))
	for i, b := range batches {
		folds[i], letters[i] = w.decode(b)
	}
	start := time.Now()
	traced, end := w.startFold(ctx, batches, folds)
	uncounted, errs := w.count(traced, folds...)
	end(errors.Join(errs...))
	w.observe(batches, errs, start)
	for i, b := range batches {
		p := b.Partition
		if errs[i] == nil {
			errs[i] = w.acknowledgeUncounted(ctx, p, uncounted[i], letters[i])
		}
		if redisclient.IsRefusal(errs[i]) { // the partition's keys may be the reason
			quarantined, err := w.quarantine.examine(ctx, p)
			if quarantined {
				errs[i] = fmt.Errorf("%w: %w", errQuarantined, errs[i])
			}
			errs[i] = errors.Join(errs[i], err)
		}
	}
	return errs
}

// decode returns the events of a batch that can be counted, and dead letters for the others. A producer may compute
// the partition of a key wrongly. The key would then be counted in two partitions, and each would know only a part of
// its count.
func (w *worker) decode(b eventlog.Batch) (counters.Batch, []deadLetter) {
	events, letters := make([]counters.Event, 0, len(b.Messages)), []deadLetter(nil)
	for _, m := range b.Messages {
		e, err := m.Decode()
		switch own := w.Keys.Partition(e.Key); {
		case err != nil:
			letters = append(letters, letterOf(m, invalid, err.Error()))
		case own != b.Partition:
			letters = append(letters, letterOf(m, misplaced, fmt.Sprintf(
				"wrong partition: appended to partition %d, the key belongs to partition %d (%s)", b.Partition, own,
				w.Keys.Events(own))))
		default:
			events = append(events, counters.Event{ID: m.ID, Ms: m.Ms(), Key: e.Key, Count: e.Count, ProducerID: e.ID,
				Fields: m.Values})
		}
	}
	return counters.Batch{Partition: b.Partition, Events: events}, letters
}

// count folds batches with one script call, which it tries until Redis answers. For each batch, it returns the events
// that were left out, or why the batch was not counted. If Redis refuses the call, each batch is folded separately
// (events that were already counted are skipped). So a partition with a key of another type, or an event that makes the
// script fail, does not hold up the other partitions.
func (w *worker) count(ctx context.Context, batches ...counters.Batch) (uncounted []counters.Uncounted, errs []error) {
	var refusal error
	err := w.retry(ctx, "counting events", batches[0].Partition, func() error {
		rules := w.Rules()
		folded, list, err := w.Counter.Fold(ctx, rules, batches...)
		switch {
		case redisclient.IsRefusal(err):
			refusal, err = err, nil
		case err == nil:
			uncounted = list
			w.observeFolded(folded)
			for _, b := range batches {
				w.overridden.blockedByPattern(rules, b.Events)
			}
		}
		return err
	})
	errs = make([]error, len(batches))
	if uncounted != nil {
		return uncounted, errs
	}
	uncounted = make([]counters.Uncounted, len(batches))
	for i, b := range batches {
		switch {
		case err != nil:
			errs[i] = err
		case len(batches) == 1:
			uncounted[i], errs[i] = w.isolate(ctx, b, refusal)
		default:
			list, errOf := w.count(ctx, b)
			uncounted[i], errs[i] = list[0], errOf[0]
		}
	}
	return uncounted, errs
}

// retry tries until do succeeds, Redis refuses it, or ctx ends.
func (w *worker) retry(ctx context.Context, what string, p int, do func() error) error {
	var wait backoff
	for {
		err := do()
		if err == nil || redisclient.IsRefusal(err) {
			w.outages.note(what, p, nil) // Redis has answered
		}
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, errors.Join(ctx.Err(), err))
		}
		w.Metrics.failures.Inc()
		if redisclient.IsRefusal(err) {
			return fmt.Errorf("%s: %w", what, err)
		}
		w.outages.note(what, p, err)
		if !wait.wait(ctx) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// isolate counts a batch that Redis refused for another reason than the type of a key. It halves the batch, calls
// count again, and makes a dead letter of the one event that causes the refusal.
func (w *worker) isolate(ctx context.Context, b counters.Batch, refusal error) (out counters.Uncounted, err error) {
	p, events := b.Partition, b.Events
	quarantined, err := w.quarantine.examine(ctx, p)
	// Scripts accept a counter of any type. So WRONGTYPE is about one of the partition's own keys, even if somebody
	// has fixed that key meanwhile.
	if quarantined || err != nil || redisclient.IsWrongType(refusal) {
		return out, errors.Join(refusal, err)
	}
	if len(events) == 1 {
		e := events[0]
		return out, w.deadLetter(ctx, p, []deadLetter{letterOfEvent(e, refused, refusal)})
	}
	w.Log.Warn("Redis rejected a batch; isolating the bad event", "partition", p, "events", len(events),
		"error", refusal)
	for half := range slices.Chunk(events, (len(events)+1)/2) {
		b.Events = half
		list, errs := w.count(ctx, b)
		if errs[0] != nil {
			return out, errs[0]
		}
		out.Unmatched = append(out.Unmatched, list[0].Unmatched...)
		out.Invalid = append(out.Invalid, list[0].Invalid...)
	}
	return out, nil
}

// acknowledgeUncounted acknowledges the events of a batch that were not counted.
func (w *worker) acknowledgeUncounted(ctx context.Context, p int, list counters.Uncounted, letters []deadLetter) error {
	if len(list.Unmatched) > 0 {
		err := w.retry(ctx, "acknowledging unmatched events", p, func() error {
			n, err := w.dead.acknowledge(ctx, p, list.Unmatched)
			w.Metrics.unmatched.Add(float64(n))
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, e := range list.Invalid {
		letters = append(letters, letterOfEvent(e.Event, invalid, e.Err))
	}
	return w.deadLetter(ctx, p, letters)
}

// deadLetter acknowledges events that cannot be counted and keeps them for a person to see.
func (w *worker) deadLetter(ctx context.Context, p int, letters []deadLetter) error {
	if len(letters) == 0 {
		return nil
	}
	w.Log.Warn("events cannot be counted, they become dead letters",
		"stream", w.Keys.Dead(p), "events", len(letters), "first", letters[0].id, "reason", letters[0].reason)
	err := w.retry(ctx, "writing dead letters", p, func() error { return w.dead.ofEvents(ctx, p, letters) })
	if redisclient.IsRefusal(err) { // no reason to hold up what can be counted
		w.Log.Error("writing dead letters failed, the events stay pending", "stream", w.Keys.Dead(p), "events",
			len(letters), "error", err)
		return nil
	}
	return err
}

// observe records the size and the duration of a fold. Only the events of batches without an error are counted.
func (w *worker) observe(batches []eventlog.Batch, errs []error, start time.Time) {
	events := 0
	for i, b := range batches {
		if errs[i] == nil {
			events += len(b.Messages)
		}
	}
	if events > 0 {
		w.Metrics.batchEvents.Observe(float64(events))
		w.Metrics.foldSeconds.Observe(time.Since(start).Seconds())
	}
}

// observeFolded records what became of the events of a script call, and how many events and units of each rule and
// key there were.
func (w *worker) observeFolded(folded counters.Folded) {
	if folded.Transitions > 0 {
		signal(w.raised)
	}
	w.Metrics.folded.Add(float64(folded.Folded))
	w.Metrics.late.Add(float64(folded.Late))
	w.Metrics.alreadyCounted.Add(float64(folded.AlreadyCounted))
	w.Metrics.duplicate.Add(float64(folded.Duplicate))
	w.Metrics.merged.Add(float64(folded.Merged))
	for i, keys := 0, folded.Keys; i < len(keys); {
		rule, events, units := keys[i].Rule, int64(0), int64(0)
		for ; i < len(keys) && keys[i].Rule == rule; i++ {
			events, units = events+keys[i].Events, units+keys[i].Units
			if w.Activity != nil {
				w.Activity.Events(rule, keys[i].Key, keys[i].Events, keys[i].Units)
			}
		}
		w.Metrics.ruleEvents.WithLabelValues(rule).Add(float64(events))
		w.Metrics.ruleUnits.WithLabelValues(rule).Add(float64(units))
	}
}
