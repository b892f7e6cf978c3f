package consumers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/lua"
)

// worker reads the events of every partition as one consumer of the group and
// folds them, one script call per batch and partition. It reads what has come
// since the last fold, up to a bound: batches grow by themselves when events
// come faster than they are folded, and a lone event is folded at once.
type worker struct {
	*folder
	config  Config
	readers []*eventlog.Reader
	parts   [][]int
}

func newWorker(f *folder, c Config) *worker {
	w := &worker{folder: f, config: c, parts: eventlog.Shards(c.Redis, c.Keys)}
	for _, parts := range w.parts {
		w.readers = append(w.readers, eventlog.NewReader(c.Blocking, c.Keys, c.Consumer, parts))
	}
	return w
}

// run reads and folds until ctx ends, then finishes what it holds, while work
// lasts, and leaves the group. What it could not finish stays pending for others.
func (w *worker) run(ctx, work context.Context) {
	var shards sync.WaitGroup
	for i, reader := range w.readers {
		shards.Go(func() { w.runShard(ctx, work, reader, w.parts[i]) })
	}
	shards.Wait()
	for p := range w.keys.Partitions {
		if _, err := lua.Retire(work, w.redis, w.keys.Events(p), eventlog.Group, w.config.Consumer, 0); err != nil {
			w.log.Warn("leaving the group failed", "stream", w.keys.Events(p), "error", err)
		}
	}
}

func (w *worker) runShard(ctx, work context.Context, reader *eventlog.Reader, parts []int) {
	var wait backoff
	// All groups before the first read: the embedded Redis hands out what it has
	// of the first streams and then finds no group at the next. Where it fails, as
	// it does for want of memory also if they exist, Read makes what it misses.
	if err := reader.CreateGroups(work); err != nil {
		w.log.Warn("creating the consumer groups failed", "error", err)
	}
	check := true
	for ctx.Err() == nil {
		if check {
			// Before reading on: newer servers step over a gap as they read.
			for _, p := range parts {
				if err := w.dead.ofGap(work, p); err != nil {
					w.log.Warn("looking for trimmed events failed", "partition", p, "error", err)
				}
			}
		}
		open := w.quarantine.open(work, parts)
		if len(open) == 0 {
			pause.For(ctx, w.config.Block)
			continue
		}
		reader.Take(open)
		batches, err := reader.Read(work, w.config.MaxBatch, w.config.Block)
		if redisclient.IsRefusal(err) {
			if quarantined, _ := w.quarantine.examine(work, open...); quarantined {
				continue
			}
		}
		if err != nil {
			w.log.Warn("reading failed, trying again", "error", err)
			wait.wait(ctx)
			continue
		}
		wait.reset()
		check = w.behind(batches)
		var folds sync.WaitGroup
		for _, b := range batches {
			folds.Go(func() {
				if err := w.fold(work, b); err != nil && !errors.Is(err, errQuarantined) {
					w.log.Warn("stopped before a batch was folded, another worker will claim it", "partition",
						b.Partition, "events", len(b.Messages), "error", err)
				}
			})
		}
		folds.Wait()
	}
}

// behind reports whether the oldest event just read had waited so long that
// others may be trimmed before they are read.
func (w *worker) behind(batches []eventlog.Batch) bool {
	late := time.Now().Add(-w.config.Retention / 4).UnixMilli()
	for _, b := range batches {
		if len(b.Messages) > 0 && b.Messages[0].Ms() < late {
			return true
		}
	}
	return false
}
