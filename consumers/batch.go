package consumers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// folder handles batches that were read or claimed until each of their events is acknowledged. It is safe to use from
// several goroutines.
type folder struct {
	redis      redis.UniversalClient
	lua        *lua.Server
	keys       *stream.Keys
	counter    *counters.Redis
	rules      func() *windows.Rules
	metrics    *Metrics
	log        *slog.Logger
	quarantine *quarantine
	outages    *outages
	dead       *deadLetters
	overridden *overridden   // of the sweeper
	raised     chan struct{} // of the sweeper
	activity   Activity      // may be nil
	tracer     trace.Tracer  // nil: nothing is traced
}

// fold counts batches with one script call and returns when each of their events is acknowledged: fold.lua
// acknowledges the events that it counts. The batches are of different partitions of one server. fold tries again for
// as long as ctx allows: sending a fold again is safe. errs[i] is the outcome of batches[i]. On an error (ctx has
// ended, the partition is quarantined) events stay pending, and another worker claims them.
func (f *folder) fold(ctx context.Context, batches ...eventlog.Batch) (errs []error) {
	folds, letters := make([]counters.Batch, len(batches)), make([][]deadLetter, len(batches))
	for i, b := range batches {
		folds[i].Partition = b.Partition
		folds[i].Events, letters[i] = f.decode(b)
	}
	start := time.Now()
	traced, spans := f.startFold(ctx, batches...)
	parent, state := spans.trace()
	for i := range folds {
		folds[i].TraceParent, folds[i].TraceState = parent, state
	}
	unmatched, errs := f.count(traced, folds)
	spans.end(errors.Join(errs...))
	f.observe(batches, errs, start)
	for i, b := range batches {
		if errs[i] == nil {
			errs[i] = f.acknowledgeUncounted(ctx, b.Partition, unmatched[i], letters[i])
		}
		errs[i] = f.examine(ctx, b.Partition, errs[i])
	}
	return errs
}

// observe records the size and the duration of a fold. Only the events of batches without an error are counted.
func (f *folder) observe(batches []eventlog.Batch, errs []error, start time.Time) {
	events := 0
	for i, b := range batches {
		if errs[i] == nil {
			events += len(b.Messages)
		}
	}
	if events > 0 {
		f.metrics.batchEvents.Observe(float64(events))
		f.metrics.foldSeconds.Observe(time.Since(start).Seconds())
	}
}

// examine checks whether the partition's keys are the reason, if err is a refusal.
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

// acknowledgeUncounted acknowledges the events of a batch that were not counted.
func (f *folder) acknowledgeUncounted(ctx context.Context, p int, unmatched []string, letters []deadLetter) error {
	if len(unmatched) > 0 {
		err := f.retry(ctx, "acknowledging unmatched events", p, func() error {
			n, err := f.dead.acknowledge(ctx, p, unmatched)
			f.metrics.unmatched.Add(float64(n))
			return err
		})
		if err != nil {
			return err
		}
	}
	return f.deadLetter(ctx, p, letters)
}

// decode returns the events of a batch that can be counted, and dead letters for the others.
func (f *folder) decode(b eventlog.Batch) (events []counters.Event, letters []deadLetter) {
	rules := f.rules()
	events = make([]counters.Event, 0, len(b.Messages))
	for _, m := range b.Messages {
		event, kind, err := f.eventOf(m, b.Partition, rules)
		if err != nil {
			letters = append(letters, letterOf(m, kind, err.Error()))
			continue
		}
		events = append(events, event)
	}
	return events, letters
}

// eventOf returns the event in a message of partition p. An error says why it cannot be counted, and kind is the kind
// of its dead letter. A producer may compute the partition of a key wrongly. The key would then be counted in two
// partitions, and each would know only a part of its count.
func (f *folder) eventOf(m entry.Message, p int, rules *windows.Rules) (event counters.Event, kind string, err error) {
	e, err := m.Decode()
	if err != nil {
		return event, invalid, err
	}
	if right := f.keys.Partition(e.Key); right != p {
		return event, misplaced, fmt.Errorf(
			"wrong partition: appended to partition %d, the key belongs to partition %d (%s)",
			p, right, f.keys.Events(right))
	}
	event = counters.Event{ID: m.ID, Ms: m.Ms(), Key: e.Key, Count: e.Count, ProducerID: e.ID, Fields: m.Values}
	return event, invalid, rules.CheckValues(event.Key, event.Field)
}

// count folds batches with one script call. For each batch, it returns the IDs of events that no rule matches, or why
// the batch was not counted. If Redis refuses the call, each batch is folded separately (events that were already
// counted are skipped). So a partition with a key of another type, or an event that makes the script fail, does not
// hold up the other partitions.
func (f *folder) count(ctx context.Context, batches []counters.Batch) (unmatched [][]string, errs []error) {
	sent, refusal, err := f.send(ctx, batches)
	unmatched, errs = make([][]string, len(batches)), make([]error, len(batches))
	for i := range batches {
		switch one := batches[i : i+1]; {
		case err != nil:
			errs[i] = err
		case refusal == nil:
			unmatched[i] = sent[i]
		case len(batches) == 1:
			unmatched[i], errs[i] = f.isolate(ctx, one[0], refusal)
		default:
			list, errOf := f.count(ctx, one)
			unmatched[i], errs[i] = list[0], errOf[0]
		}
	}
	return unmatched, errs
}

// isolate counts a batch that Redis refused for another reason than the type of a key. It halves the batch, calls
// count again, and makes a dead letter of the one event that causes the refusal.
func (f *folder) isolate(ctx context.Context, b counters.Batch, refusal error) (unmatched []string, err error) {
	p, events := b.Partition, b.Events
	quarantined, err := f.quarantine.examine(ctx, p)
	// Scripts accept a counter of any type. So WRONGTYPE is about one of the partition's own keys, even if somebody
	// has fixed that key meanwhile.
	if quarantined || err != nil || redisclient.IsWrongType(refusal) {
		return nil, errors.Join(refusal, err)
	}
	if len(events) == 1 {
		e := events[0]
		letter := letterOf(entry.Message{ID: e.ID, Values: e.Fields}, refused, refusal.Error())
		return nil, f.deadLetter(ctx, p, []deadLetter{letter})
	}
	f.log.Warn("Redis rejected a batch; isolating the bad event", "partition", p, "events", len(events),
		"error", refusal)
	for half := range slices.Chunk(events, (len(events)+1)/2) {
		b.Events = half
		list, errs := f.count(ctx, []counters.Batch{b})
		if errs[0] != nil {
			return nil, errs[0]
		}
		unmatched = append(unmatched, list[0]...)
	}
	return unmatched, nil
}

// send folds batches with one script call. For each batch, it returns the IDs of events that no rule matches. It
// tries until Redis answers. If Redis refuses the call, refusal is its answer. Some events may have been counted
// then, and all must be folded again.
func (f *folder) send(ctx context.Context, batches []counters.Batch) (unmatched [][]string, refusal, err error) {
	var rules *windows.Rules
	err = f.retry(ctx, "counting events", batches[0].Partition, func() (err error) {
		var folded counters.Folded
		rules = f.rules()
		folded, unmatched, err = f.counter.Fold(ctx, rules, batches...)
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
	for _, b := range batches {
		f.overridden.blockedByPattern(rules, b.Events)
	}
	return unmatched, nil, nil
}

// retire removes a consumer from the groups of partitions of one server. It also removes consumers that were idle for
// longer than idle (0: none of these). A consumer that has pending events stays.
func (f *folder) retire(ctx context.Context, parts []int, consumer string, idle time.Duration) error {
	events := make([]string, len(parts))
	for i, p := range parts {
		events[i] = f.keys.Events(p)
	}
	_, err := f.lua.Retire(ctx, events, eventlog.Group, consumer, idle.Milliseconds())
	return err
}

func (f *folder) observeFolded(folded counters.Folded) {
	if folded.Transitions > 0 {
		signal(f.raised)
	}
	f.metrics.folded.Add(float64(folded.Folded))
	f.metrics.late.Add(float64(folded.Late))
	f.metrics.alreadyCounted.Add(float64(folded.AlreadyCounted))
	f.metrics.duplicate.Add(float64(folded.Duplicate))
	f.metrics.merged.Add(float64(folded.Merged))
	f.metrics.corruptCounters.Add(float64(folded.Corrupt))
	f.record(folded.Keys)
}

// record notes how many events and units of each rule and key were folded.
func (f *folder) record(keys []counters.FoldedKey) {
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
	err := f.retry(ctx, "writing dead letters", p, func() error { return f.dead.ofEvents(ctx, p, letters) })
	if redisclient.IsRefusal(err) { // no reason to hold up what can be counted
		f.log.Error("writing dead letters failed, the events stay pending", "stream", f.keys.Dead(p), "events",
			len(letters), "error", err)
		return nil
	}
	return err
}

// retry tries until do succeeds, Redis refuses it, or ctx ends.
func (f *folder) retry(ctx context.Context, what string, p int, do func() error) error {
	var wait backoff
	for {
		err := do()
		if err == nil || redisclient.IsRefusal(err) {
			f.outages.note(what, p, nil) // it has answered
		}
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
		f.outages.note(what, p, err)
		if !wait.wait(ctx) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}
