package compare

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/measure"
	"github.com/streamcounter/streamcounter/windows"
)

// Contestants take turns of this many requests, so that a busy minute of the machine affects all of them.
const turn = 200

// Config says what to compare.
type Config struct {
	// Redis is where windows.Algorithms count; nil if none of them is selected. It must not retry (see
	// counters.Redis).
	Redis redis.UniversalClient
	// RedisName says which Redis it is, without its password.
	RedisName string
	// Algorithms are the selected ones; none means all of Names.
	Algorithms []string
	// Windows are those of the one rule that all contestants use.
	Windows []windows.Window
	// Progress is called with how many of all checks are done; may be nil.
	Progress func(done, total int)
}

type runner struct {
	Config
	trace  Trace
	prefix string
}

// Run sends every request of the trace to each algorithm, at the trace's own times. No request may cost more than the
// smallest limit. Its keys in Redis begin with sc-compare- and a random part; Run removes them when it ends, however
// it ends.
func Run(ctx context.Context, cfg Config, trace Trace) (_ *Comparison, err error) {
	if err := CheckNames(cfg.Algorithms); err != nil {
		return nil, err
	}
	if _, err := RuleOf("", cfg.Windows); err != nil {
		return nil, err
	}
	if len(trace.Requests) == 0 {
		return nil, fmt.Errorf("%s: it has no request", trace.Name)
	}
	r := &runner{Config: cfg, trace: trace, prefix: "sc-compare-" + strings.ToLower(rand.Text()[:8])}
	if NeedRedis(cfg.Algorithms) {
		defer func() {
			// Also after Ctrl-C, within a bound.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
			defer cancel()
			err = errors.Join(err, measure.Remove(ctx, cfg.Redis, r.prefix+"-"))
		}()
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

// drive makes the contestants take turns until all have answered every request.
func (r *runner) drive(ctx context.Context, list []*contestant) error {
	done, total := 0, len(list)*len(r.trace.Requests)
	for round := 0; done < total; round++ {
		for i := range list {
			c := list[(round+i)%len(list)] // no contestant always follows the same one
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
		admitted, err := c.decide(ctx, requests[c.at])
		if err != nil {
			return err
		}
		c.reached = append(c.reached, admitted)
		c.at++
	}
	if c.ground != nil {
		return c.ground.end(ctx)
	}
	return ctx.Err()
}

// judge compares the verdicts of the last stretch with the oracle. This is not part of what is measured.
func (c *contestant) judge(requests []Request) {
	first := c.at - len(c.reached)
	for i, admitted := range c.reached {
		c.tally.take(requests[first+i], admitted)
	}
	c.reached = c.reached[:0]
}

func (r *runner) comparison(list []*contestant) *Comparison {
	out := &Comparison{Trace: r.trace.info()}
	for _, w := range r.Windows {
		out.Windows = append(out.Windows, WindowInfo{w.Limit, w.Per.Milliseconds()})
	}
	if NeedRedis(r.Algorithms) {
		out.Redis = &r.RedisName
	}
	for _, c := range list {
		out.Algorithms = append(out.Algorithms, c.result(out.Trace.Keys))
	}
	return out
}
