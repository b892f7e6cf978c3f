package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/measure"
)

// cleanUpWithin bounds the removing of a run's keys after it was cut off.
const cleanUpWithin = time.Minute

// Run measures what cfg says on the server of c, whose client must not retry
// (MaxRetries: -1) and should have a pool of cfg.Connections. All its keys begin
// with a prefix of its own, and are removed whatever happens.
//
// Calls that fail are counted in the report. An error is what ended the run
// before its end, ctx's own among them; the report then has what was measured
// until then. It is nil where cfg is refused.
func Run(ctx context.Context, c redis.UniversalClient, cfg Config) (report *Report, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string, float64) {}
	}
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	r := &runner{cfg: &cfg, redis: c, prefix: "sc-bench-" + hex.EncodeToString(b[:])}
	report = newReport(ctx, c, &cfg)
	report.Prefix = r.prefix
	defer func() {
		report.Seconds = time.Since(report.Started).Seconds()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpWithin)
		defer cancel()
		err = errors.Join(err, measure.Remove(last, c, r.prefix+"-"))
	}()
	parts := r.parts()
	for i, p := range parts {
		p.progress = func(what string, done float64) {
			cfg.Progress(what, (float64(i)+done)/float64(len(parts)))
		}
		part, err := r.run(ctx, i, p)
		if part != nil {
			report.Parts = append(report.Parts, *part)
		}
		if err != nil {
			return report, fmt.Errorf("%s: %w", p, err)
		}
	}
	return report, nil
}

type runner struct {
	cfg    *Config
	redis  redis.UniversalClient
	prefix string
}

// part is one operation under one algorithm.
type part struct {
	operation, algorithm string // no algorithm for append: no counter is touched
	progress             func(what string, done float64)

	product    contestant
	yardsticks []contestant
	least      int // operations of a slice
}

func (p *part) String() string {
	if p.algorithm == "" {
		return p.operation
	}
	return p.operation + " " + p.algorithm
}

func (r *runner) parts() []*part {
	var out []*part
	for _, op := range r.cfg.Operations {
		if op == Append {
			out = append(out, &part{operation: op})
			continue
		}
		for _, a := range r.cfg.Algorithms {
			out = append(out, &part{operation: op, algorithm: a})
		}
	}
	return out
}

// run gives each part fresh keys, so that no figure depends on what was
// measured before, and removes them after it.
func (r *runner) run(ctx context.Context, i int, p *part) (_ *Part, err error) {
	room, err := newRoom(r.cfg, r.redis, fmt.Sprintf("%s-%d", r.prefix, i), p.algorithm)
	if err != nil {
		return nil, err
	}
	p.progress(p.String(), 0)
	if err := room.counter.RecordRules(ctx, room.rules); err != nil {
		return nil, err
	}
	var mem memory
	if p.operation != Append {
		if mem, err = room.fillAndWeigh(ctx, func(done float64) {
			p.progress(fmt.Sprintf("filling for %s (%.0f%%)", p, 100*done), 0)
		}); err != nil {
			return nil, fmt.Errorf("filling: %w", err)
		}
	}
	if err := p.enter(ctx, room); err != nil {
		return nil, err
	}
	m := &meter{cfg: r.cfg, redis: r.redis, part: p, choose: newChooser(r.cfg)}
	if err := m.warmUp(ctx); err != nil {
		return nil, fmt.Errorf("warming up: %w", err)
	}
	var usedBefore, usedAfter *float64
	if p.operation != Append {
		n, err := room.used(ctx)
		if err != nil {
			return nil, err
		}
		usedBefore = &n
	}
	measureErr := m.measure(ctx)
	if p.operation != Append && measureErr == nil {
		n, err := room.used(ctx)
		if err != nil {
			return nil, err
		}
		usedAfter = &n
	}
	out := m.report()
	if out != nil {
		out.UsedPerKeyBefore, out.UsedPerKeyAfter = usedBefore, usedAfter
		out.BytesPerKey, out.BytesPerEntry = mem.perKey, mem.perEntry
	}
	if measureErr != nil {
		return out, measureErr
	}
	return out, measure.Remove(ctx, r.redis, room.keys.Prefix+":")
}

// enter makes the contestants of the part in their room.
func (p *part) enter(ctx context.Context, r *room) (err error) {
	var yard contestant
	switch p.operation {
	case Append:
		p.least = r.cfg.Batch
		p.yardsticks = []contestant{r.xadd()}
		p.product, err = r.appends()
	case Fold:
		// Enough that each partition's batches are full but for the last.
		p.least = r.cfg.Batch * r.keys.Partitions
		if p.product, err = r.fold(ctx); err != nil {
			return err
		}
		yard, err = r.readAndAck(ctx)
		p.yardsticks = []contestant{yard}
	case Check, Peek:
		p.least = 200
		if yard, err = r.get(ctx); err != nil {
			return err
		}
		p.yardsticks, p.product = []contestant{yard, r.emptyScript()}, r.peek()
		if p.operation == Check {
			p.product = r.check()
			yard, err = r.gcra(ctx)
			p.yardsticks = append(p.yardsticks, yard)
		}
	}
	return err
}
