package consumers

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
)

// retireEvery is how many rounds pass between two searches for consumers that are gone. This search is not urgent.
const retireEvery = 10

// claim returns pending events of partition p, from cursor on, like eventlog.Reader.Claim.
type claim func(p int, cursor string) (b eventlog.Batch, next string, err error)

// takeOver takes over, in a shard, the events of workers that have stopped answering, after they have been pending for
// MinIdle. Taking over from a worker that only slept does no harm: each event is counted only by the fold that
// acknowledges it. It goes on until ctx ends, then finishes what it holds, while work lasts.
func (w *worker) takeOver(ctx, work context.Context, parts []int) {
	reader := eventlog.NewReader(w.Redis, w.Keys, w.Consumer, parts)
	claim := func(p int, cursor string) (eventlog.Batch, string, error) {
		batch, next, err := reader.Claim(work, p, w.MinIdle, cursor, w.MaxBatch)
		w.Metrics.claims.Add(float64(len(batch.Messages)))
		return batch, next, err
	}
	for round := 0; ctx.Err() == nil; round++ {
		failed := w.reclaimAll(ctx, work, reader, w.quarantine.open(work, parts), claim)
		if round%retireEvery == 0 && ctx.Err() == nil {
			// Workers that died long ago have no pending events any more.
			failed = cmp.Or(failed, w.retire(work, parts, "", 20*w.MinIdle))
		}
		w.outages.note("taking over events of other workers", parts[0], failed)
		if !pause.For(ctx, w.MinIdle/2) {
			return
		}
	}
}

// reclaimAll claims and folds pending events of these partitions once, and looks for trimmed events. It returns
// the first error, after all partitions were tried.
func (w *worker) reclaimAll(ctx, work context.Context, reader *eventlog.Reader, parts []int, claim claim) (
	failed error) {
	note := func(err error, parts ...int) {
		if !w.quarantine.explains(work, err, parts...) && !errors.Is(err, errQuarantined) {
			failed = cmp.Or(failed, err)
		}
	}
	for _, p := range reader.MayPend(work, parts) {
		if ctx.Err() != nil {
			return failed
		}
		if err := w.reclaim(ctx, work, p, claim); err != nil {
			note(partitionError{p, err}, p)
		}
	}
	if ctx.Err() == nil {
		note(w.dead.ofGaps(work, parts...), parts...)
	}
	return failed
}

// reclaim goes once through the pending events of partition p. A step can return no event although more are pending:
// only the cursor says when it is done.
func (w *worker) reclaim(ctx, work context.Context, p int, claim claim) error {
	cursor := "0-0"
	for ctx.Err() == nil {
		batch, next, err := claim(p, cursor)
		if err != nil {
			return err
		}
		if err := errors.Join(w.fold(work, batch)...); err != nil {
			return err
		}
		if next == "0-0" {
			break
		}
		cursor = next
	}
	return nil
}

// retire removes a consumer from the groups of partitions of one server. It also removes consumers that were idle for
// longer than idle (0: none of these). A consumer that has pending events stays.
func (w *worker) retire(ctx context.Context, parts []int, consumer string, idle time.Duration) error {
	events := make([]string, len(parts))
	for i, p := range parts {
		events[i] = w.Keys.Events(p)
	}
	r := w.lua.Call(ctx, "retire", nil, events, eventlog.Group, consumer, idle.Milliseconds())
	r.Integer() // how many were removed
	return r.End()
}
