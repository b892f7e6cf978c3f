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

// reclaimer takes over the events of workers that have stopped answering, once
// they have been pending for min-idle. Taking over from a worker that only
// slept does no harm: the fold's gate lets one of the two count.
type reclaimer struct {
	*folder
	config Config
}

func newReclaimer(f *folder, c Config) *reclaimer {
	return &reclaimer{folder: f, config: c}
}

// run looks for such events until ctx ends, then finishes what it holds, while
// work lasts. A fold is tried until it succeeds, so on a Cluster, where one
// server may be away alone, each partition is looked after by itself.
func (r *reclaimer) run(ctx, work context.Context) {
	var shards sync.WaitGroup
	for _, parts := range eventlog.Shards(r.redis, r.keys.All()) {
		shards.Go(func() { r.runShard(ctx, work, parts) })
	}
	shards.Wait()
}

func (r *reclaimer) runShard(ctx, work context.Context, parts []int) {
	reader := eventlog.NewReader(r.redis, r.keys, r.config.Consumer, parts)
	for {
		var failed error
		for _, p := range r.quarantine.open(work, parts) {
			if ctx.Err() != nil {
				return
			}
			err := r.reclaim(ctx, work, reader, p)
			if redisclient.IsRefusal(err) {
				if quarantined, _ := r.quarantine.examine(work, p); quarantined {
					continue
				}
			}
			if !errors.Is(err, errQuarantined) {
				failed = cmp.Or(failed, err)
			}
		}
		r.outages.note("taking over events of other workers", parts[0], failed)
		if !pause.For(ctx, r.config.MinIdle/2) {
			return
		}
	}
}

// reclaim goes once through what is pending in partition p. A step can bring no
// event and still have more to see: only the cursor says when it is done.
func (r *reclaimer) reclaim(ctx, work context.Context, reader *eventlog.Reader, p int) error {
	cursor := "0-0"
	for ctx.Err() == nil {
		batch, next, trimmed, err := reader.Claim(work, p, r.config.MinIdle, cursor, r.config.MaxBatch)
		if err != nil {
			return err
		}
		if len(trimmed) > 0 {
			r.dead.ofTrimmed(work, p, trimmed)
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
	if err := r.dead.ofGap(work, p); err != nil {
		return err
	}
	// Workers that died long ago hold nothing any more.
	_, err := r.lua.Retire(work, r.keys.Events(p), eventlog.Group, "", 20*r.config.MinIdle.Milliseconds())
	return err
}
