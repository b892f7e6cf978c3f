// Package compare owns the comparison of the algorithms: it sends the same requests to each of them, in the trace's
// own time, and recounts what each admitted.
//
// run.go sends a trace (trace.go) to the contestants (contestant.go), which take turns; truth.go computes the correct
// verdicts. result.go shows the result. rollout.go replays a trace through the rules of a file instead.
package compare

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
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
	// Algorithms are the selected ones, which CheckNames knows; none means all of Names.
	Algorithms []string
	// Windows are those of the one rule that all contestants use.
	Windows []windows.Window
	// Progress is called with how many of all checks are done; may be nil.
	Progress func(done, total int)
}

// Run sends every request of the trace, which has at least one, to each algorithm, at the trace's own times. No request
// may cost more than the smallest limit. Its keys in Redis begin with sc-compare- and a random part; Run removes them
// when it ends, however it ends.
func Run(ctx context.Context, cfg Config, trace Trace) (_ *Comparison, err error) {
	prefix := "sc-compare-" + strings.ToLower(rand.Text()[:8]) + "-"
	if cfg.Redis != nil {
		defer func() {
			// Also after Ctrl-C, within a bound.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
			defer cancel()
			err = errors.Join(err, measure.Remove(ctx, cfg.Redis, prefix))
		}()
	}
	list, err := cfg.contestants(ctx, prefix, trace.Requests[0].Ms)
	if err != nil {
		return nil, err
	}
	if err := cfg.drive(ctx, list, trace.Requests); err != nil {
		return nil, err
	}
	out := &Comparison{Trace: trace.info()}
	for _, w := range cfg.Windows {
		out.Windows = append(out.Windows, WindowInfo{w.Limit, w.Per.Milliseconds()})
	}
	if cfg.Redis != nil {
		out.Redis = &cfg.RedisName
	}
	for _, c := range list {
		out.Algorithms = append(out.Algorithms, c.result(out.Trace.Keys))
	}
	return out, nil
}

// drive makes the contestants take turns until all have answered every request.
func (c *Config) drive(ctx context.Context, list []*contestant, all []Request) error {
	done, total, round := 0, len(list)*len(all), 0
	for requests := range slices.Chunk(all, turn) {
		for i := range list { // no contestant always follows the same one
			if err := list[(round+i)%len(list)].takeTurn(ctx, requests); err != nil {
				return err
			}
			done += len(requests)
			if c.Progress != nil {
				c.Progress(done, total)
			}
		}
		round++
	}
	return nil
}
