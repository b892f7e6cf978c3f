package consumers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// Worker reads the events of every partition as one consumer of the group and
// folds them, one script call per batch and partition. It reads what has come
// since the last fold, up to a bound: batches grow by themselves when events
// come faster than they are folded, and a lone event is folded at once.
type Worker struct {
	*folder
	config Config
	lanes  []*stream.Reader
	parts  [][]int
}

func newWorker(f *folder, c Config) *Worker {
	w := &Worker{folder: f, config: c, parts: stream.Lanes(c.Redis, c.Keys)}
	for _, parts := range w.parts {
		w.lanes = append(w.lanes, stream.NewReader(c.Blocking, c.Keys, c.Consumer, parts))
	}
	return w
}

// Run reads and folds until ctx ends, then finishes what it holds, while work
// lasts, and leaves the group. What it could not finish stays pending for others.
func (w *Worker) Run(ctx, work context.Context) {
	var lanes sync.WaitGroup
	for i, lane := range w.lanes {
		lanes.Go(func() { w.runLane(ctx, work, lane, w.parts[i]) })
	}
	lanes.Wait()
	for p := range w.keys.Partitions {
		if _, err := lua.Retire(work, w.redis, w.keys.Events(p), stream.Group, w.config.Consumer, 0); err != nil {
			w.log.Warn("leaving the group failed", "stream", w.keys.Events(p), "error", err)
		}
	}
}

func (w *Worker) runLane(ctx, work context.Context, lane *stream.Reader, parts []int) {
	var wait backoff
	// All groups before the first read: the embedded Redis hands out what it has
	// of the first streams and then finds no group at the next. Where it fails, as
	// it does for want of memory also if they exist, Read makes what it misses.
	if err := lane.CreateGroups(work); err != nil {
		w.log.Warn("the consumer groups cannot be made now", "error", err)
	}
	check := true
	for ctx.Err() == nil {
		if check {
			// Before reading on: newer servers step over a gap as they read.
			for _, p := range parts {
				if err := w.lookForGap(work, p); err != nil {
					w.log.Warn("looking for trimmed events failed", "partition", p, "error", err)
				}
			}
		}
		open := w.aside.without(work, parts)
		if len(open) == 0 {
			pause(ctx, w.config.Block)
			continue
		}
		lane.Take(open)
		batches, err := lane.Read(work, w.config.MaxBatch, w.config.Block)
		if stream.IsRefusal(err) {
			if aside, _ := w.aside.look(work, open...); aside {
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
				if err := w.fold(work, b); err != nil && !errors.Is(err, errAside) {
					w.log.Warn("stopped with a batch unfolded, others will claim it", "partition", b.Partition, "events", len(b.Messages), "error", err)
				}
			})
		}
		folds.Wait()
	}
}

// behind tells whether the oldest event just read had waited so long that
// others may be trimmed before they are read.
func (w *Worker) behind(batches []stream.Batch) bool {
	late := time.Now().Add(-w.config.Retention / 4).UnixMilli()
	for _, b := range batches {
		if len(b.Messages) > 0 && b.Messages[0].Ms() < late {
			return true
		}
	}
	return false
}
