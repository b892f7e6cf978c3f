package target

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/measure"
	"github.com/streamcounter/streamcounter/internal/redact"
)

// Config says what a run measures.
type Config struct {
	// URL of the server: http://HOST:PORT, https://…, grpc://…, or grpcs://….
	URL string
	// Metrics is the URL of the server's /metrics, from which its CPU time is read; empty: /metrics beside URL if
	// that is HTTP, otherwise it is not read.
	Metrics string
	// Redis is the server's Redis, whose CPU time is read; nil: it is not read.
	Redis redis.UniversalClient
	// Token is sent as a bearer token; empty: none.
	Token string
	// TLS is for https and grpcs; nil: the default configuration.
	TLS *tls.Config
	// Key is the beginning of all keys; a number from 0 to Keys-1 follows.
	Key  string
	Keys int
	// ZipfS is the exponent of the Zipf distribution by which keys are chosen, above 1; 0: uniformly.
	ZipfS float64
	// Callers is how many callers there are at once; each waits for its answer.
	Callers int
	// PerCall is how many checks one call has.
	PerCall int
	// Duration is how long is measured, Warmup how long the load runs before that (0: not at all).
	Duration, Warmup time.Duration
}

// Bounds of a Config.
const (
	maxCallers = 10_000
	maxPerCall = 100 // the maximum of a server
)

// Validate returns the first error, named by the flag of `streamcounter bench`.
func (c Config) Validate() error {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || !isScheme(u.Scheme) {
		return fmt.Errorf("--target is %s: expected http://HOST:PORT, https://, grpc:// or grpcs://", redact.URL(c.URL))
	}
	if u, err := url.Parse(c.Metrics); c.Metrics != "" && (err != nil || u.Host == "" || u.Scheme != "http" &&
		u.Scheme != "https") {
		return fmt.Errorf("--metrics is %s: expected http://HOST:PORT/metrics", redact.URL(c.Metrics))
	}
	switch {
	case c.Callers < 1 || c.Callers > maxCallers:
		return fmt.Errorf("--connections is %d: expected 1 to %d", c.Callers, maxCallers)
	case c.PerCall < 1 || c.PerCall > maxPerCall:
		return fmt.Errorf("--per-call is %d: expected 1 to %d", c.PerCall, maxPerCall)
	case c.Keys < 1:
		return fmt.Errorf("--keys is %d: expected at least 1", c.Keys)
	case c.Duration <= 0 || c.Warmup < 0:
		return fmt.Errorf("--duration is %s and --warmup %s: expected more than 0, and at least 0", c.Duration,
			c.Warmup)
	}
	return measure.Keys{S: c.ZipfS}.Validate()
}

func isScheme(s string) bool { return s == "http" || s == "https" || s == "grpc" || s == "grpcs" }

// caller sends one call with a check of one unit per key. It is used by one goroutine at a time.
type caller interface {
	call(ctx context.Context, keys []string) (admitted, error)
}

// admitted is how many checks of a call a limit admitted, and how many passed without a limit, because Redis did not
// answer and on_error decided: these do not measure a limiter.
type admitted struct{ byLimit, onError int }

// Run measures with a valid Config. If ctx ends early, the report covers what was measured until then.
func Run(ctx context.Context, c Config) (*Report, error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, err
	}
	var callers func(i int) caller
	var closeAll func()
	if u.Scheme == "grpc" || u.Scheme == "grpcs" {
		callers, closeAll, err = overGRPC(u, &c)
	} else {
		callers, closeAll = overHTTP(u, &c)
		c.Metrics = cmp.Or(c.Metrics, u.Scheme+"://"+u.Host+"/metrics")
	}
	if err != nil {
		return nil, err
	}
	defer closeAll()
	list := make([]caller, c.Callers)
	for i := range list {
		list[i] = callers(i)
	}
	if _, err := list[0].call(ctx, []string{c.Key + "0"}); err != nil {
		return nil, fmt.Errorf("the first call: %w", err)
	}
	if c.Warmup > 0 {
		if _, err := c.drive(ctx, list, c.Warmup); err != nil {
			return nil, err
		}
	}
	before, err := c.cpu(ctx)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	sum, err := c.drive(ctx, list, c.Duration)
	wall := time.Since(start)
	if err != nil {
		return nil, err
	}
	after, err := c.cpu(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	return c.report(sum, wall, before, after), nil
}

// tally has the results of the callers.
type tally struct {
	calls, checks, admitted, onError, errors int64
	first                                    error
	latency                                  *hdrhistogram.Histogram // µs
}

func newTally() *tally { return &tally{latency: hdrhistogram.New(1, 60_000_000, 3)} }

func (t *tally) add(o *tally) {
	t.calls += o.calls
	t.checks += o.checks
	t.admitted += o.admitted
	t.onError += o.onError
	t.errors += o.errors
	if t.first == nil {
		t.first = o.first
	}
	t.latency.Merge(o.latency)
}

// drive makes all callers call for d. Each sends its next call when it has its answer.
func (c *Config) drive(ctx context.Context, list []caller, d time.Duration) (*tally, error) {
	// Do not use a deadline: it would be sent with the call, and the server's clock could reach it first.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(d, cancel).Stop()
	var running sync.WaitGroup
	tallies := make([]*tally, len(list))
	for i, who := range list {
		t := newTally()
		tallies[i] = t
		running.Go(func() {
			choose := measure.Keys{N: c.Keys, S: c.ZipfS}.Chooser(rand.New(rand.NewPCG(1, uint64(i))))
			keys := make([]string, c.PerCall)
			for ctx.Err() == nil {
				for k := range keys {
					keys[k] = c.Key + strconv.Itoa(choose())
				}
				began := time.Now()
				passed, err := who.call(ctx, keys)
				if ctx.Err() != nil { // the call was cut off: it does not count
					return
				}
				// A call cannot take more than a minute: it times out before, and counts as an error below.
				_ = t.latency.RecordValue(max(1, time.Since(began).Microseconds()))
				t.calls++
				if err != nil {
					t.errors++
					t.first = cmp.Or(t.first, err)
					continue
				}
				t.checks += int64(len(keys))
				t.admitted += int64(passed.byLimit)
				t.onError += int64(passed.onError)
			}
		})
	}
	running.Wait()
	sum := newTally()
	for _, t := range tallies {
		sum.add(t)
	}
	if sum.checks == 0 {
		return nil, cmp.Or(sum.first, errors.New("no call was answered in time"))
	}
	return sum, nil
}

// used is the CPU time that both servers have used so far; nil if it is not known.
type used struct{ server, redis *time.Duration }

func (c *Config) cpu(ctx context.Context) (used, error) {
	var u used
	if c.Metrics != "" {
		d, err := processCPU(ctx, c)
		if err != nil {
			return u, fmt.Errorf("reading the server's CPU: %w", err)
		}
		u.server = &d
	}
	if c.Redis != nil {
		d, err := measure.CPU(ctx, c.Redis)
		if err != nil && !errors.Is(err, measure.ErrNotTold) {
			return u, fmt.Errorf("reading Redis's CPU: %w", err)
		}
		if err == nil {
			u.redis = &d
		}
	}
	return u, nil
}
