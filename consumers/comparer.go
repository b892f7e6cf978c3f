package consumers

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/windows"
)

// Decisions returns the throttle decisions that subscribers find now. alerts.Publisher implements it.
type Decisions interface {
	// Subjects returns the subjects that have a message.
	Subjects(ctx context.Context) ([]string, error)
	// LastDecision returns the message on a subject. It returns nil without a message, or if it is not a decision.
	LastDecision(ctx context.Context, subject string) (*api.Transition, error)
	// Ensure creates the streams of decisions and alerts if they are missing.
	Ensure(ctx context.Context) error
}

// comparer compares, at intervals, the throttle decisions in Redis with those that subscribers find. Any client that
// may publish there can overwrite a message, and a message can be deleted; such a decision is published again. Redis
// can lose the record of a decision after it was published; such a decision is released. The comparer does this for
// the partitions that this process relays.
type comparer struct {
	counter    *counters.Redis
	turns      *turns
	decisions  Decisions
	held       func() map[int]context.Context
	quarantine *quarantine
	metrics    *Metrics
	log        *slog.Logger
	every      time.Duration
	// again is how long to wait before a decision that differs is compared a second time: a new change may still be
	// on its way.
	again time.Duration
}

// compareStep is how many decisions are compared, and published again, at a time. After each step the comparer rests
// for as long as the step took.
const compareStep = 100

func (c *comparer) run(ctx context.Context) {
	if c.decisions == nil {
		return
	}
	for pause.For(ctx, c.every) {
		held := c.held()
		if len(held) == 0 {
			continue
		}
		// While there is no transition, nothing else notices that a stream is missing.
		if err := c.decisions.Ensure(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("creating the streams of decisions and alerts failed, trying again later", "error", err)
			continue
		}
		if err := c.compare(ctx, slices.Collect(maps.Keys(held))); err != nil && ctx.Err() == nil {
			c.log.Warn("comparing the throttle decisions with those in NATS failed, trying again later", "error", err)
		}
	}
}

// compare looks for decisions that differ, in all of these partitions. Then it waits, once, and publishes again those
// that still differ, or releases them. It goes on after an error, and returns the first one.
func (c *comparer) compare(ctx context.Context, parts []int) error {
	records, differ := map[string]string{}, map[int][]string{} // field → record, partition → fields
	parts = c.quarantine.open(ctx, parts)
	subjects, failed := c.decisions.Subjects(ctx) // before Redis, which has each decision before NATS has it
	unknown := map[string]bool{}
	for _, subject := range subjects {
		unknown[subject] = true
	}
	for _, p := range parts {
		fields, err := c.counter.Levelled(ctx, p)
		failed = cmp.Or(failed, err, c.differing(ctx, p, fields, unknown, func(list []counters.Decision) error {
			for _, d := range list {
				records[d.Field] = d.Record
				differ[p] = append(differ[p], d.Field)
			}
			return nil
		}))
	}
	var lost map[string]*api.Transition
	if failed == nil {
		lost, failed = c.lost(ctx, parts, unknown)
	}
	if len(differ)+len(lost) == 0 || !pause.For(ctx, c.again) {
		return failed
	}
	restated, err := c.release(ctx, lost)
	failed = cmp.Or(failed, err)
	c.metrics.restated.Add(float64(restated))
	for p, fields := range differ {
		failed = cmp.Or(failed, c.differing(ctx, p, fields, nil, func(list []counters.Decision) error {
			var wrong []string
			for _, d := range list {
				if records[d.Field] == d.Record {
					wrong = append(wrong, d.Field)
				}
			}
			return c.turns.take(p, func(rules *windows.Rules) error {
				n, err := c.counter.Restate(ctx, p, rules, wrong)
				c.metrics.restated.Add(float64(n))
				restated += n
				return err
			})
		}))
	}
	if restated > 0 {
		c.log.Warn("throttle decisions in NATS differ from those in Redis, and are published again, or released; "+
			"Redis may have lost them, or another program may publish there", "decisions", restated)
	}
	return failed
}

// differing calls take for each step, with the decisions that differ from those that subscribers find. It removes the
// subjects of all decisions from unknown.
func (c *comparer) differing(ctx context.Context, p int, fields []string, unknown map[string]bool,
	take func([]counters.Decision) error) error {
	for step := range slices.Chunk(fields, compareStep) {
		began := time.Now()
		list, err := c.counter.Decisions(ctx, p, step)
		if err != nil {
			return err
		}
		found := make([]*api.Transition, len(list))
		var reading errgroup.Group
		for i, d := range list {
			delete(unknown, c.subject(d.Rule, d.Key))
			reading.Go(func() (err error) {
				found[i], err = c.decisions.LastDecision(ctx, c.subject(d.Rule, d.Key))
				return err
			})
		}
		if err := reading.Wait(); err != nil {
			return err
		}
		var differ []counters.Decision
		for i, d := range list {
			if !says(found[i], d) {
				differ = append(differ, d)
			}
		}
		if err := take(differ); err != nil {
			return err
		}
		if !pause.For(ctx, time.Since(began)) {
			return ctx.Err()
		}
	}
	return nil
}

// says reports whether subscribers find the decision d.
func says(found *api.Transition, d counters.Decision) bool {
	return found != nil && found.State == api.StateThrottled && found.Rule == d.Rule && found.Key == d.Key &&
		found.WindowMs == d.WindowMs && found.Limit == d.Limit && found.SinceMs == d.SinceMs &&
		found.UntilMs == d.UntilMs
}

func (c *comparer) subject(rule, key string) string {
	return api.ThrottleSubject(c.counter.Keys().Prefix, rule, key)
}

// lost returns, by subject, the decisions of these partitions on subjects of which Redis has no record.
func (c *comparer) lost(ctx context.Context, parts []int, subjects map[string]bool) (map[string]*api.Transition,
	error) {
	out := map[string]*api.Transition{}
	for subject := range subjects {
		token := subject[strings.LastIndex(subject, ".")+1:]
		if key, known := api.ParseKeyToken(token); known && !slices.Contains(parts, c.counter.Partition(key)) {
			continue // another process reads it
		}
		d, err := c.decisions.LastDecision(ctx, subject)
		if err != nil {
			return out, err
		}
		if d != nil && d.State == api.StateThrottled && c.subject(d.Rule, d.Key) == subject &&
			slices.Contains(parts, c.counter.Partition(d.Key)) {
			out[subject] = d
		}
	}
	return out, nil
}

// release releases lost decisions that subscribers find still, and returns how many transitions it wrote.
func (c *comparer) release(ctx context.Context, lost map[string]*api.Transition) (released int64, failed error) {
	for subject, d := range lost {
		now, err := c.decisions.LastDecision(ctx, subject)
		if err == nil && now != nil && now.Version == d.Version {
			p := c.counter.Partition(d.Key)
			err = c.turns.take(p, func(rules *windows.Rules) error {
				n, err := c.counter.Release(ctx, p, rules, d)
				released += n
				return err
			})
		}
		failed = cmp.Or(failed, err)
	}
	return released, failed
}
