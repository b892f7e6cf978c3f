package consumers

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/windows"
)

// Decisions returns the throttle decisions that subscribers find now. alerts.Publisher implements it.
type Decisions interface {
	// LastDecision returns the message for a rule and key. It returns nil without a message, or if it is not
	// a decision.
	LastDecision(ctx context.Context, rule, key string) (*api.Transition, error)
	// Ensure creates the streams of decisions and alerts if they are missing.
	Ensure(ctx context.Context) error
}

// comparer compares, at intervals, the throttle decisions in Redis with those that subscribers find. Any client that
// may publish there can overwrite a message, and a message can be deleted; such a decision is published again. The
// comparer does this for the partitions that this process relays.
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

// compareStep is how many records are read at a time. After each step the comparer rests for as long as the step
// took.
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
		for p := range held {
			if err := c.compare(ctx, p); err != nil && ctx.Err() == nil {
				c.log.Warn("comparing the throttle decisions with those in NATS failed, trying again later",
					"partition", p, "error", err)
				break
			}
		}
	}
}

// compare checks the decisions of a partition, and checks those that differ a second time.
func (c *comparer) compare(ctx context.Context, p int) error {
	if len(c.quarantine.open(ctx, []int{p})) == 0 {
		return nil
	}
	fields, err := c.counter.Levelled(ctx, p)
	if err != nil {
		return err
	}
	first, err := c.differing(ctx, p, fields)
	if err != nil || len(first) == 0 || !pause.For(ctx, c.again) {
		return err
	}
	fields = fields[:0]
	for field := range first {
		fields = append(fields, field)
	}
	second, err := c.differing(ctx, p, fields)
	if err != nil {
		return err
	}
	var wrong []string
	for field, record := range second {
		if first[field] == record {
			wrong = append(wrong, field)
		}
	}
	for step := range slices.Chunk(wrong, compareStep) {
		err := c.turns.take(p, func(rules *windows.Rules) error {
			n, err := c.counter.Restate(ctx, p, rules, step)
			c.metrics.restated.Add(float64(n))
			return err
		})
		if err != nil {
			return err
		}
	}
	if len(wrong) > 0 {
		c.log.Warn("throttle decisions in NATS differ from those published, and are published again; another program "+
			"may publish there", "partition", p, "decisions", len(wrong))
	}
	return nil
}

// differing returns the fields whose decision differs from the one that subscribers find: field → its record.
func (c *comparer) differing(ctx context.Context, p int, fields []string) (map[string]string, error) {
	out := map[string]string{}
	for step := range slices.Chunk(fields, compareStep) {
		began := time.Now()
		list, err := c.counter.Decisions(ctx, p, step)
		if err != nil {
			return nil, err
		}
		for _, d := range list {
			found, err := c.decisions.LastDecision(ctx, d.Rule, d.Key)
			if err != nil {
				return nil, err
			}
			if !says(found, d) {
				out[d.Field] = d.Record
			}
		}
		if !pause.For(ctx, time.Since(began)) {
			return nil, ctx.Err()
		}
	}
	return out, nil
}

// says reports whether subscribers find the decision d.
func says(found *api.Transition, d counters.Decision) bool {
	return found != nil && found.State == api.StateThrottled && found.Rule == d.Rule && found.Key == d.Key &&
		found.WindowMs == d.WindowMs && found.Limit == d.Limit && found.SinceMs == d.SinceMs &&
		found.UntilMs == d.UntilMs
}
