package consumers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
)

// worker reads the events of every partition as one consumer of the group and folds them, with one script call per
// read, or on a Cluster one per partition. A read takes the events that have come since the last fold, up to a bound.
// So batches grow when events come faster than they are folded. A short pause between reads makes them grow a little
// earlier. A single event is folded at once. A fold ends when each of its events is acknowledged (batch.go). The worker
// also takes over events of workers that died (reclaimer.go). It is safe to use from several goroutines.
type worker struct {
	*shared
	overridden *overridden   // of the sweeper
	raised     chan struct{} // of the sweeper
}

// run reads and folds the events of a shard until ctx ends. Then it finishes what it holds, while work lasts, and
// leaves the group. Events that it could not finish stay pending for other workers.
func (w *worker) run(ctx, work context.Context, parts []int) {
	defer func() {
		if err := w.retire(work, parts, w.Consumer, 0); err != nil {
			w.Log.Warn("leaving the consumer groups failed", "error", err)
		}
	}()
	var wait backoff
	reader := eventlog.NewReader(w.Blocking, w.Keys, w.Consumer, parts)
	// Create all groups before the first read: the embedded Redis returns entries of the first streams and then finds
	// no group at the next stream. If this fails, Read creates the missing groups. It fails if Redis is out of
	// memory, even if all groups exist.
	if err := reader.CreateGroups(work); err != nil {
		w.Log.Debug("creating the consumer groups failed", "error", err)
	}
	check, unseen := true, error(nil) // unseen: why some partitions were not examined
	for ctx.Err() == nil {
		if check {
			// Check before the next read: newer servers skip a gap when they read.
			unseen = w.dead.ofGaps(work, parts...)
			w.outages.note("looking for trimmed events", parts[0], unseen)
		}
		open := w.quarantine.open(work, parts)
		if len(open) == 0 {
			pause.For(ctx, w.Block)
			continue
		}
		reader.Take(open)
		batches, err := reader.Read(work, w.MaxBatch, w.Block)
		if lost := err; errors.Is(lost, eventlog.ErrReplyLost) {
			err = w.reclaimAll(ctx, work, reader, open, func(p int, cursor string) (eventlog.Batch, string, error) {
				return reader.Own(work, p, cursor)
			})
			if err == nil {
				w.Log.Warn("reading fewer events at a time", "partitions", open, "error", lost)
			}
		}
		if w.quarantine.explains(work, err, open...) {
			continue
		}
		w.outages.note("reading events", parts[0], err)
		if err != nil {
			wait.wait(ctx)
			continue
		}
		wait.reset()
		check = w.behind(batches) || unseen != nil
		w.foldAll(work, batches)
		if d := w.pauseAfter(batches); d > 0 {
			w.readPause(ctx, d)
		}
	}
}

// foldAll folds the batches that were read, with several script calls at a time.
func (w *worker) foldAll(work context.Context, batches []eventlog.Batch) {
	var folds sync.WaitGroup
	for _, call := range w.calls(batches) {
		folds.Go(func() {
			for i, err := range w.fold(work, call...) {
				if err != nil && !errors.Is(err, errQuarantined) {
					w.Log.Warn("stopped before a batch was counted; another worker will take it over", "partition",
						call[i].Partition, "events", len(call[i].Messages), "error", err)
				}
			}
		})
	}
	folds.Wait()
}

// calls divides the batches that were read among script calls. During a script call Redis serves nobody else, so each
// call has at most MaxBatch events.
func (w *worker) calls(batches []eventlog.Batch) (calls [][]eventlog.Batch) {
	from, events := 0, 0
	for i, b := range batches {
		if i > from && (events+len(b.Messages) > w.MaxBatch || w.separately) {
			calls, from, events = append(calls, batches[from:i]), i, 0
		}
		events += len(b.Messages)
	}
	if from < len(batches) {
		calls = append(calls, batches[from:])
	}
	return calls
}

// pausePerEvent is how long the worker waits for each event after the first one of a read. At a rate of one event per
// pausePerEvent (4,000 a second), a pause brings on average as many events as make the next pause equally long. So
// above that rate pauses grow to ReadPause, and below it they shrink to nothing.
const pausePerEvent = 250 * time.Microsecond

// pauseAfter returns how long to wait before the next read, so that the read returns more events: a read and a fold
// cost Redis and the worker about the same for one event as for ten. A single event causes no pause. Nor does a full
// batch, because more events are waiting.
func (w *worker) pauseAfter(batches []eventlog.Batch) time.Duration {
	events := 0
	for _, b := range batches {
		if len(b.Messages) >= w.MaxBatch {
			return 0
		}
		events += len(b.Messages)
	}
	return min(time.Duration(max(events-1, 0))*pausePerEvent, w.ReadPause)
}

// behind reports whether the oldest event just read had waited so long that other events may be trimmed before they
// are read.
func (w *worker) behind(batches []eventlog.Batch) bool {
	late := time.Now().Add(-w.Retention / 4).UnixMilli()
	for _, b := range batches {
		if len(b.Messages) > 0 && b.Messages[0].Ms() < late {
			return true
		}
	}
	return false
}
