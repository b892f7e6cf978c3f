// Package target measures a running server: checks over HTTP or gRPC, as callers send them. It reports checks per
// second, latency, and the CPU time of the server and its Redis per check. Read target.go next.
package target

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"text/tabwriter"
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
	// Key is the beginning of all keys; the number of a key follows.
	Key  string
	Keys measure.Keys
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
	if err != nil || u.Host == "" || !slices.Contains(schemes, u.Scheme) {
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
	case c.Keys.N < 1:
		return fmt.Errorf("--keys is %d: expected at least 1", c.Keys.N)
	case c.Duration <= 0 || c.Warmup < 0:
		return fmt.Errorf("--duration is %s and --warmup %s: expected more than 0, and at least 0", c.Duration,
			c.Warmup)
	}
	return c.Keys.Validate()
}

var schemes = []string{"http", "https", "grpc", "grpcs"}

// caller sends one call with a check of one unit per key. It is used by one goroutine at a time.
type caller func(ctx context.Context, keys []string) (admitted, error)

// admitted is how many checks of a call a limit admitted, and how many passed without a limit, because Redis did not
// answer and on_error decided: these do not measure a limiter.
type admitted struct{ byLimit, onError int }

// Run measures with a Config that Validate accepts. If ctx ends early, the report covers what was measured until then.
func Run(ctx context.Context, c Config) (*Report, error) {
	u, _ := url.Parse(c.URL)
	callers := overGRPC
	if u.Scheme == "http" || u.Scheme == "https" {
		callers = overHTTP
		c.Metrics = cmp.Or(c.Metrics, u.Scheme+"://"+u.Host+"/metrics")
	}
	list, closeAll, err := callers(u, &c)
	if err != nil {
		return nil, err
	}
	defer closeAll()
	if _, err := list[0](ctx, []string{c.Key + "0"}); err != nil {
		return nil, fmt.Errorf("the first call: %w", err)
	}
	if c.Warmup > 0 {
		if _, err := c.drive(ctx, list, c.Warmup); err != nil {
			return nil, err
		}
	}
	var out *Report
	var ofRedis float64
	ofServer, err := measure.Used(ctx, c.Redis, c.serverCPU, func() error {
		ofRedis, err = measure.Used(ctx, c.Redis, redisCPU, func() (err error) {
			out, err = c.drive(ctx, list, c.Duration)
			return err
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	perCheck := func(ns float64) *float64 { return measure.Known(ns / 1000 / float64(out.Checks)) }
	out.ServerCPUUs, out.RedisCPUUs = perCheck(ofServer), perCheck(ofRedis)
	return out, nil
}

// drive makes all callers call for d. Each sends its next call when it has its answer.
func (c *Config) drive(ctx context.Context, list []caller, d time.Duration) (*Report, error) {
	// Do not use a deadline: it would be sent with the call, and the server's clock could reach it first.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(d, cancel).Stop()
	var running sync.WaitGroup
	sum := &tally{latency: hdrhistogram.New(1, 60_000_000, 3)}
	start := time.Now()
	for i, call := range list {
		running.Go(func() {
			choose := c.Keys.Chooser(rand.New(rand.NewPCG(1, uint64(i))))
			keys := make([]string, c.PerCall)
			for ctx.Err() == nil {
				for k := range keys {
					keys[k] = c.Key + strconv.Itoa(choose())
				}
				began := time.Now()
				passed, err := call(ctx, keys)
				if ctx.Err() != nil { // the call was cut off: it does not count
					return
				}
				sum.add(time.Since(began), len(keys), passed, err)
			}
		})
	}
	running.Wait()
	if sum.Checks == 0 {
		return nil, errors.New(cmp.Or(sum.FirstError, "no call was answered in time"))
	}
	return c.report(sum, time.Since(start)), nil
}

// tally has the results of all callers.
type tally struct {
	mu sync.Mutex
	Report
	latency *hdrhistogram.Histogram // µs
}

func (t *tally) add(took time.Duration, checks int, passed admitted, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// A call cannot take more than a minute: it times out before, and counts as an error below.
	_ = t.latency.RecordValue(max(1, took.Microseconds()))
	t.Calls++
	if err != nil {
		t.Errors++
		t.FirstError = cmp.Or(t.FirstError, err.Error())
		return
	}
	t.Checks += int64(checks)
	t.Admitted += int64(passed.byLimit)
	t.OnError += int64(passed.onError)
}

func redisCPU(ctx context.Context, client redis.UniversalClient) (time.Duration, error) {
	if client == nil {
		return 0, measure.ErrNotTold
	}
	d, err := measure.CPU(ctx, client)
	if err != nil {
		err = fmt.Errorf("reading Redis's CPU: %w", err)
	}
	return d, err
}

// Report is the result of a run. The names contain the units; null means not known.
type Report struct {
	// The caller sets CommandLine, without secrets.
	CommandLine string  `json:"command_line"`
	Target      string  `json:"target"`
	Callers     int     `json:"callers"`
	PerCall     int     `json:"checks_per_call"`
	Seconds     float64 `json:"seconds"`
	Calls       int64   `json:"calls"`
	Checks      int64   `json:"checks"`
	Admitted    int64   `json:"admitted"`
	// OnError is how many checks passed because on_error decided (over gRPC: without a limit), and not because of
	// room in a window.
	OnError    int64   `json:"admitted_on_error"`
	Errors     int64   `json:"errors"`
	FirstError string  `json:"first_error,omitempty"`
	ChecksPerS float64 `json:"checks_per_s"`
	// Per call.
	P50Us int64 `json:"p50_us"`
	P99Us int64 `json:"p99_us"`
	MaxUs int64 `json:"max_us"`
	// Per check.
	ServerCPUUs *float64 `json:"server_cpu_us"`
	RedisCPUUs  *float64 `json:"redis_cpu_us"`
}

func (c *Config) report(t *tally, wall time.Duration) *Report {
	r := t.Report
	r.Target, r.Callers, r.PerCall, r.Seconds = redact.URL(c.URL), c.Callers, c.PerCall, wall.Seconds()
	r.ChecksPerS = float64(r.Checks) / wall.Seconds()
	r.P50Us, r.P99Us, r.MaxUs = t.latency.ValueAtQuantile(50), t.latency.ValueAtQuantile(99), t.latency.Max()
	return &r
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "%s, %d callers, %d checks a call, %.1f s\n\n", r.Target, r.Callers, r.PerCall, r.Seconds)
	fmt.Fprintf(t, "checks/s\t%.0f\n", r.ChecksPerS)
	fmt.Fprintf(t, "latency of a call\tp50 %s\tp99 %s\tmax %s\n", us(r.P50Us), us(r.P99Us), us(r.MaxUs))
	fmt.Fprintf(t, "CPU per check\tserver %s\tRedis %s\ttogether %s\n", price(r.ServerCPUUs), price(r.RedisCPUUs),
		price(r.ServerCPUUs, r.RedisCPUUs))
	fmt.Fprintf(t, "checks\t%d\tadmitted %d\n", r.Checks, r.Admitted)
	if r.OnError > 0 {
		fmt.Fprintf(t, "not decided by a limit\t%d\tadmitted because no rule matches, or by on_error\n", r.OnError)
	}
	if r.Errors > 0 {
		fmt.Fprintf(t, "failed calls\t%d of %d; the first: %s\n", r.Errors, r.Calls, r.FirstError)
	}
	fmt.Fprintf(t, "\nby: %s\n", r.CommandLine)
	return t.Flush()
}

func us(n int64) string { return (time.Duration(n) * time.Microsecond).String() }

// price returns the sum of figures, if all are known.
func price(list ...*float64) string {
	sum := 0.0
	for _, p := range list {
		if p == nil {
			return "unknown"
		}
		sum += *p
	}
	return fmt.Sprintf("%.1f µs", sum)
}
