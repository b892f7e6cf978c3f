package consumers

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// reclaimer takes over the events of workers that have stopped answering, after they have been pending for MinIdle.
// Taking over from a worker that only slept does no harm: each event is counted only by the fold that acknowledges
// it.
type reclaimer struct {
	*folder
	config Config
}

func newReclaimer(f *folder, c Config) *reclaimer {
	return &reclaimer{folder: f, config: c}
}

// run looks for such events until ctx ends, then finishes what it holds, while work lasts. A fold is tried until it
// succeeds. So on a Cluster, where one server may be down alone, each shard has its own loop.
func (r *reclaimer) run(ctx, work context.Context) {
	var shards sync.WaitGroup
	for _, parts := range eventlog.Shards(r.redis, r.keys.All()) {
		shards.Go(func() { r.runShard(ctx, work, parts) })
	}
	shards.Wait()
}

// retireEvery is how many rounds pass between two searches for consumers that are gone, which are not urgent.
const retireEvery = 10

func (r *reclaimer) runShard(ctx, work context.Context, parts []int) {
	reader := eventlog.NewReader(r.redis, r.keys, r.config.Consumer, parts)
	for round := 0; ctx.Err() == nil; round++ {
		failed := r.reclaimAll(ctx, work, reader, r.quarantine.open(work, parts))
		if round%retireEvery == 0 && ctx.Err() == nil {
			// Workers that died long ago have no pending events any more.
			failed = cmp.Or(failed, r.retire(work, parts, "", 20*r.config.MinIdle))
		}
		r.outages.note("taking over events of other workers", parts[0], failed)
		if !pause.For(ctx, r.config.MinIdle/2) {
			return
		}
	}
}

// reclaimAll claims and folds the pending events of these partitions once, and looks for trimmed events. It returns
// the first error, after all partitions were tried.
func (r *reclaimer) reclaimAll(ctx, work context.Context, reader *eventlog.Reader, parts []int) (failed error) {
	note := func(err error, parts ...int) {
		if redisclient.IsRefusal(err) {
			if quarantined, _ := r.quarantine.examine(work, parts...); quarantined {
				return
			}
		}
		if !errors.Is(err, errQuarantined) {
			failed = cmp.Or(failed, err)
		}
	}
	for _, p := range reader.MayPend(work, parts) {
		if ctx.Err() != nil {
			return failed
		}
		note(r.reclaim(ctx, work, reader, p), p)
	}
	if ctx.Err() == nil {
		note(r.dead.ofGaps(work, parts...), parts...)
	}
	return failed
}

// reclaim goes once through the pending events of partition p. A step can return no event although more are pending:
// only the cursor says when it is done.
func (r *reclaimer) reclaim(ctx, work context.Context, reader *eventlog.Reader, p int) error {
	cursor := "0-0"
	for ctx.Err() == nil {
		batch, next, err := reader.Claim(work, p, r.config.MinIdle, cursor, r.config.MaxBatch)
		if err != nil {
			return err
		}
		r.metrics.claims.Add(float64(len(batch.Messages)))
		if err := errors.Join(r.fold(work, batch)...); err != nil {
			return err
		}
		if next == "0-0" {
			break
		}
		cursor = next
	}
	return nil
}
