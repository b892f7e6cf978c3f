package consumers

import (
	"cmp"
	"context"
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
	// LastDecision returns the message on a subject. It returns nil without one, or if subscribers ignore it.
	LastDecision(ctx context.Context, subject string) (*api.Transition, error)
	// Ensure creates the streams of decisions and alerts if they are missing.
	Ensure(ctx context.Context) error
}

// comparer compares, at intervals, the throttle decisions in Redis with those that subscribers find. Any client that
// may publish there can overwrite a message, and a message can be deleted; such a decision is published again. Redis
// can lose the record of a decision after it was published; such a decision is released. The comparer does this for
// the partitions that this process relays.
type comparer struct{ *shared }

// compareStep is how many decisions are compared, and published again, at a time. After each step the comparer rests
// for as long as the step took.
const compareStep = 100

func (c *comparer) run(ctx context.Context) {
	if c.Decisions == nil {
		return
	}
	for pause.For(ctx, c.CompareEvery) {
		held := c.locks.held()
		if len(held) == 0 {
			continue
		}
		// While there is no transition, nothing else notices that a stream is missing.
		if err := c.Decisions.Ensure(ctx); err != nil && ctx.Err() == nil {
			c.Log.Warn("creating the streams of decisions and alerts failed, trying again later", "error", err)
			continue
		}
		if err := c.compare(ctx, slices.Collect(maps.Keys(held))); err != nil && ctx.Err() == nil {
			c.Log.Warn("comparing the throttle decisions with those in NATS failed, trying again later", "error", err)
		}
	}
}

// compare looks for decisions that differ, in all of these partitions. It waits once and looks again. A decision that
// still differs is published again; a lost one is released. It skips a partition if outbox entries from before the
// wait are not published yet. It goes on after an error, and returns the first one.
func (c *comparer) compare(ctx context.Context, parts []int) error {
	records, differ := map[string]string{}, map[int][]string{} // field → record, partition → fields
	parts = c.quarantine.open(ctx, parts)
	// Read NATS before Redis: each decision is in Redis first, so a new one is not taken for a lost one.
	subjects, failed := c.Decisions.Subjects(ctx)
	unknown := map[string]bool{}
	for _, subject := range subjects {
		unknown[subject] = true
	}
	for _, p := range parts {
		fields, err := c.Counter.Levelled(ctx, p)
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
	newest, err := c.newestInOutboxes(ctx, parts, nil)
	failed = cmp.Or(failed, err)
	if len(differ)+len(lost) == 0 || !pause.For(ctx, c.CompareEvery/12) {
		return failed
	}
	waiting, err := c.newestInOutboxes(ctx, parts, newest)
	failed = cmp.Or(failed, err)
	maps.DeleteFunc(differ, func(p int, _ []string) bool { return waiting[p] != noEntry })
	maps.DeleteFunc(lost, func(_ string, d *api.Transition) bool {
		return waiting[c.Counter.Partition(d.Key)] != noEntry
	})
	restated, err := c.release(ctx, lost)
	failed = cmp.Or(failed, err)
	c.Metrics.restated.Add(float64(restated))
	for p, fields := range differ {
		failed = cmp.Or(failed, c.differing(ctx, p, fields, nil, func(list []counters.Decision) error {
			wrong := slices.DeleteFunc(list, func(d counters.Decision) bool { return records[d.Field] != d.Record })
			return c.inTurn(p, func(rules *windows.Rules) error {
				n, err := c.Counter.Restate(ctx, p, rules, wrong)
				c.Metrics.restated.Add(float64(n))
				restated += n
				return err
			})
		}))
	}
	if restated > 0 {
		c.Log.Warn("throttle decisions in NATS differ from those in Redis, and are published again, or released; "+
			"Redis may have lost them, or another program may publish there", "decisions", restated)
	}
	return failed
}

// newestInOutboxes returns the newest entry in the outbox of each partition, up to last[p] if last has partition p.
func (c *comparer) newestInOutboxes(ctx context.Context, parts []int, last map[int]string) (map[int]string, error) {
	out, failed := map[int]string{}, error(nil)
	for _, p := range parts {
		newest, err := c.newestInOutbox(ctx, p, cmp.Or(last[p], "+"))
		out[p], failed = newest, cmp.Or(failed, err)
	}
	return out, failed
}

// differing reads decisions in steps. It calls take once per step, with those that differ from what subscribers find.
// It removes the subjects of all decisions from unknown. It goes on after an error of take, and returns the first one.
func (c *comparer) differing(ctx context.Context, p int, fields []string, unknown map[string]bool,
	take func([]counters.Decision) error) (failed error) {
	for step := range slices.Chunk(fields, compareStep) {
		began := time.Now()
		list, err := c.Counter.Decisions(ctx, p, step)
		if err != nil {
			return cmp.Or(failed, err)
		}
		found := make([]*api.Transition, len(list))
		var reading errgroup.Group
		for i, d := range list {
			delete(unknown, c.subject(d.Rule, d.Key))
			reading.Go(func() (err error) {
				found[i], err = c.Decisions.LastDecision(ctx, c.subject(d.Rule, d.Key))
				return err
			})
		}
		if err := reading.Wait(); err != nil {
			return cmp.Or(failed, err)
		}
		var differ []counters.Decision
		for i, d := range list {
			if !agrees(found[i], d) {
				if found[i] != nil {
					d.Published = found[i].Version
				}
				differ = append(differ, d)
			}
		}
		failed = cmp.Or(failed, take(differ))
		if !pause.For(ctx, time.Since(began)) {
			return ctx.Err()
		}
	}
	return failed
}

// agrees reports whether the message that subscribers find agrees with d in all fields that they act on.
func agrees(found *api.Transition, d counters.Decision) bool {
	return found != nil && found.State == api.StateThrottled && found.Shadow == d.Shadow &&
		found.WindowMs == d.WindowMs && found.Limit == d.Limit && found.SinceMs == d.SinceMs &&
		found.UntilMs == d.UntilMs && found.ExpiresMs > d.UntilMs+d.HoldMs &&
		found.Version <= d.Version // if it is above, subscribers ignore the next transitions of the key
}

func (c *comparer) subject(rule, key string) string {
	return api.ThrottleSubject(c.Counter.Keys().Prefix, rule, key)
}

// lost returns the decisions of these partitions that NATS has on these subjects, of which Redis has no record.
func (c *comparer) lost(ctx context.Context, parts []int, subjects map[string]bool) (map[string]*api.Transition,
	error) {
	out := map[string]*api.Transition{}
	for subject := range subjects {
		token := subject[strings.LastIndex(subject, ".")+1:]
		if key, known := api.ParseKeyToken(token); known && !slices.Contains(parts, c.Counter.Partition(key)) {
			continue // another process compares it
		}
		d, err := c.Decisions.LastDecision(ctx, subject)
		if err != nil {
			return out, err
		}
		if d != nil && d.State == api.StateThrottled && slices.Contains(parts, c.Counter.Partition(d.Key)) {
			out[subject] = d
		}
	}
	return out, nil
}

// release releases lost decisions that subscribers still find, and returns how many transitions it wrote.
func (c *comparer) release(ctx context.Context, lost map[string]*api.Transition) (released int64, failed error) {
	for subject, d := range lost {
		now, err := c.Decisions.LastDecision(ctx, subject)
		if err == nil && now != nil && now.Version == d.Version {
			p := c.Counter.Partition(d.Key)
			err = c.inTurn(p, func(rules *windows.Rules) error {
				n, err := c.Counter.Release(ctx, p, rules, d)
				released += n
				return err
			})
		}
		failed = cmp.Or(failed, err)
	}
	return released, failed
}
