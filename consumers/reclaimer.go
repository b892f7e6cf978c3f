package consumers

import (
	"context"

	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// Reclaimer takes over the events of workers that have stopped answering, once
// they have been pending for min-idle. Taking over from a worker that only
// slept does no harm: the fold's gate lets one of the two count.
type Reclaimer struct {
	*folder
	config Config
	reader *stream.Reader
}

func newReclaimer(f *folder, c Config) *Reclaimer {
	return &Reclaimer{folder: f, config: c, reader: stream.NewReader(c.Redis, c.Keys, c.Consumer, c.Keys.All())}
}

// Run looks for such events until ctx ends, then finishes what it holds, while
// work lasts.
func (r *Reclaimer) Run(ctx, work context.Context) {
	for {
		for p := range r.keys.Partitions {
			if ctx.Err() != nil {
				return
			}
			if err := r.reclaim(ctx, work, p); err != nil {
				r.log.Warn("reclaiming failed, trying again later", "partition", p, "error", err)
			}
		}
		if !pause(ctx, r.config.MinIdle/2) {
			return
		}
	}
}

// reclaim goes once through what is pending in partition p. A step can bring no
// event and still have more to see: only the cursor says when it is done.
func (r *Reclaimer) reclaim(ctx, work context.Context, p int) error {
	cursor := "0-0"
	for ctx.Err() == nil {
		batch, next, trimmed, err := r.reader.Claim(work, p, r.config.MinIdle, cursor, r.config.MaxBatch)
		if err != nil {
			return err
		}
		if len(trimmed) > 0 {
			r.lost(work, p, trimmed)
		}
		r.metrics.claims.Add(float64(len(batch.Messages)))
		if err := r.fold(work, batch); err != nil {
			return err
		}
		if next == "0-0" {
			break
		}
		cursor = next
	}
	if err := r.lookForGap(work, p); err != nil {
		return err
	}
	// Workers that died long ago hold nothing any more.
	_, err := lua.Retire(work, r.redis, r.keys.Events(p), stream.Group, "", 20*r.config.MinIdle.Milliseconds())
	return err
}
