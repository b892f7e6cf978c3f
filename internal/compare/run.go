package compare

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/measure"
	"github.com/streamcounter/streamcounter/windows"
)

// Contestants take turns, so that a noisy minute of the machine is everybody's.
const (
	turn    = 200 // requests
	warmUps = 100 // checks before anything is measured: they load the scripts
)

// Config says what to compare.
type Config struct {
	// Redis is where windows.Algorithms count; nil if none of them is picked. It
	// must not retry (see windows.Redis).
	Redis redis.UniversalClient
	// RedisName says which Redis it is, without its password.
	RedisName string
	// Algorithms are the picked ones; none means all of Names.
	Algorithms []string
	// Windows are those of the one rule that all are asked by.
	Windows []windows.Window
	// Progress is called with how many of all checks are done; may be nil.
	Progress func(done, total int)
}

// ErrCost means that a request costs more than a limit: no algorithm could ever
// admit it, and none may be asked.
var ErrCost = errors.New("cost exceeds limit")

type runner struct {
	Config
	trace  Trace
	prefix string
	pings  *pinger
}

// Run asks each algorithm for every request of the trace, at the trace's own
// times. Its keys in Redis begin with sc-compare- and chance; it removes them
// when it ends, however it ends.
func Run(ctx context.Context, cfg Config, trace Trace) (_ *Comparison, err error) {
	if err := CheckNames(cfg.Algorithms); err != nil {
		return nil, err
	}
	rules, err := RuleOf("", cfg.Windows)
	if err != nil {
		return nil, err
	}
	if len(trace.Requests) == 0 {
		return nil, fmt.Errorf("%s: it has no request", trace.Name)
	}
	for _, r := range trace.Requests {
		if smallest := rules.List()[0].Smallest(); r.Cost > smallest {
			return nil, fmt.Errorf("%w: %.60q asks for %d at %d ms, the smallest limit is %d", ErrCost, r.Key, r.Cost,
				r.Ms, smallest)
		}
	}
	r := &runner{Config: cfg, trace: trace, prefix: newPrefix()}
	if NeedRedis(cfg.Algorithms) {
		defer func() {
			// Also after Ctrl-C, within a bound.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
			defer cancel()
			err = errors.Join(err, measure.Remove(ctx, cfg.Redis, r.prefix+"-"))
		}()
		if err := r.warmUp(ctx); err != nil {
			return nil, err
		}
		if r.pings, err = newPinger(ctx, cfg.Redis); err != nil {
			return nil, err
		}
	}
	list, err := r.contestants(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.drive(ctx, list); err != nil {
		return nil, err
	}
	return r.comparison(list), nil
}

func newPrefix() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return "sc-compare-" + hex.EncodeToString(b[:])
}

// warmUp runs each script of the contest on a ground that is then removed.
func (r *runner) warmUp(ctx context.Context) error {
	for _, name := range windows.Algorithms {
		if len(r.Algorithms) > 0 && !slices.Contains(r.Algorithms, name) {
			continue
		}
		rules, err := RuleOf(name, r.Windows)
		if err != nil {
			return err
		}
		c := &clock{now: start}
		g, err := newGround(ctx, r.Redis, r.prefix+"-w", rules, c)
		if err != nil {
			return err
		}
		for range warmUps {
			if _, err := g.counter.Check(ctx, []windows.Request{{Plan: rules.PlanOf(rules.List()[0]), Key: "warm-up",
				Cost: 1}}); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			c.now++
		}
	}
	return measure.Remove(ctx, r.Redis, r.prefix+"-w")
}

// drive lets the contestants take turns until all have answered every request.
func (r *runner) drive(ctx context.Context, list []*contestant) error {
	done, total := 0, len(list)*len(r.trace.Requests)
	for round := 0; done < total; round++ {
		if err := r.pings.turn(ctx); err != nil {
			return err
		}
		for i := range list {
			c := list[(round+i)%len(list)] // nobody always follows the same one
			before := c.at
			if err := c.stretch(ctx, r.trace.Requests); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			c.judge(r.trace.Requests)
			done += c.at - before
			if r.Progress != nil {
				r.Progress(done, total)
			}
		}
	}
	return nil
}

// stretch answers the requests of one turn.
func (c *contestant) stretch(ctx context.Context, requests []Request) error {
	if c.at == len(requests) {
		return nil
	}
	if c.ground != nil {
		if err := c.ground.begin(ctx); err != nil {
			return err
		}
	}
	for range min(turn, len(requests)-c.at) {
		asked := time.Now()
		admitted, err := c.decide(ctx, requests[c.at])
		if err != nil {
			return err
		}
		if c.took != nil {
			if err := c.took.RecordValue(min(max(1, time.Since(asked).Nanoseconds()),
				c.took.HighestTrackableValue())); err != nil {
				return err
			}
		}
		c.reached = append(c.reached, admitted)
		c.at++
	}
	if c.ground != nil {
		return c.ground.end(ctx)
	}
	return ctx.Err()
}

// judge compares the verdicts of the last stretch with the oracle, outside of
// what is measured.
func (c *contestant) judge(requests []Request) {
	first := c.at - len(c.reached)
	for i, admitted := range c.reached {
		c.tally.take(requests[first+i], admitted)
	}
	c.reached = c.reached[:0]
}

func (r *runner) comparison(list []*contestant) *Comparison {
	asked, _ := r.trace.asked()
	requests := r.trace.Requests
	out := &Comparison{
		Trace: TraceInfo{
			Name: r.trace.Name, Seed: r.trace.Seed, Requests: len(requests), Keys: len(asked),
			FirstMs: requests[0].Ms, LastMs: requests[len(requests)-1].Ms, Sorted: r.trace.Sorted,
			RejectedLines: r.trace.Rejected,
		},
		PingCPU: r.pings.mean(), requests: requests,
	}
	for _, units := range asked {
		out.Trace.Units += units
	}
	for _, w := range r.Windows {
		out.Windows = append(out.Windows, WindowInfo{w.Limit, w.Per.Milliseconds()})
	}
	if NeedRedis(r.Algorithms) {
		out.Redis = &r.RedisName
	}
	for _, c := range list {
		out.Algorithms = append(out.Algorithms, c.result(len(asked)))
	}
	return out
}
