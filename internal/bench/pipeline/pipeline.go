// Package pipeline measures the main path as a whole: events are appended at a steady rate, folded by a separate
// `work` process, and published. It reports the CPU time of Redis's main thread and of the worker per event, and how
// long a decision takes from the XADD that causes it to its message on NATS.
//
// `streamcounter bench pipeline` uses it.
package pipeline

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/internal/measure"
	"github.com/streamcounter/streamcounter/internal/natsconn"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/stream"
)

// Config says what a run measures.
type Config struct {
	// Program is the streamcounter binary that is run as `work`.
	Program string
	// Client is a Redis client that never retries; the worker connects to RedisURL and NATSURL.
	Client            redis.UniversalClient
	RedisURL, NATSURL string
	// Rate is how many events are appended per second. If Drain is above zero, it is how many events are appended
	// before the worker starts, and Rate is not used.
	Rate       float64
	Drain      int
	Keys       measure.Keys
	Partitions int
	Algorithm  string
	// Duration is how long is measured, after Warmup.
	Duration, Warmup time.Duration
	Seed             uint64
}

// The rules of a run. The load stays far below its limit; a probe crosses its own limit with one event.
const rules = `rules:
  - {name: load, match: "user:*", algorithm: %[1]s, windows: [{limit: 1000000000, per: 1m}]}
  - {name: probe, match: "probe:*", algorithm: %[1]s, windows: [{limit: 1, per: 1s}]}
`

// startTimeout bounds how long the worker may take to publish a first decision.
const startTimeout = 30 * time.Second

var (
	errNoDecision = fmt.Errorf("no decision from the worker: timed out after %s", startTimeout)
	errEnded      = errors.New("the worker ended")
)

// run is one measurement. Its load appends events as a producer without merging does.
type run struct {
	Config
	keys    *stream.Keys
	probes  *probes
	choose  func() int // of the keys
	sent    int64      // events
	renewed time.Time  // when the streams' expiry was last set
}

// Run measures with a config that is valid. All keys begin with a random prefix and are removed at the end,
// as are the two JetStream streams.
func Run(ctx context.Context, c Config) (_ *Report, err error) {
	keys, err := stream.NewKeys("sc-bench-"+strings.ToLower(crand.Text()[:8]), c.Partitions)
	if err != nil {
		return nil, err
	}
	if _, err := measure.CPU(ctx, c.Client); err != nil {
		return nil, err
	}
	nc, err := natsconn.Connect(natsconn.Config{URL: c.NATSURL, Name: "streamcounter bench"})
	if err != nil {
		return nil, fmt.Errorf("NATS: %w", redact.Error(err))
	}
	defer nc.Close()
	random := rand.New(rand.NewPCG(c.Seed, 0xfeed))
	r := &run{Config: c, keys: keys, choose: c.Keys.Chooser(random)}
	defer func() { err = errors.Join(err, r.clean(context.WithoutCancel(ctx), nc)) }()
	if r.probes, err = newProbes(nc, r); err != nil {
		return nil, err
	}
	measured := r.steady
	if c.Drain > 0 {
		measured = r.drain
		if err := r.fill(ctx, c.Drain); err != nil {
			return nil, err
		}
	}
	var out *Report
	worker, err := r.withWorker(ctx, func(ctx context.Context) (err error) {
		out, err = measured(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	out.WorkerCPUUs = float64(worker.Nanoseconds()) / 1000 / float64(max(1, r.sent))
	return out, nil
}

// Validate returns the first error, named by the flag of `streamcounter bench pipeline`.
func (c Config) Validate() error {
	switch {
	case c.Drain < 0:
		return fmt.Errorf("--drain is %d: expected at least 0", c.Drain)
	case c.Drain == 0 && (c.Rate <= 0 || c.Rate > 1e6):
		return fmt.Errorf("--rate is %g: expected more than 0, at most 1000000", c.Rate)
	case c.Keys.N < 2:
		return fmt.Errorf("--keys is %d: expected at least 2", c.Keys.N)
	}
	return c.Keys.Validate()
}

// steady appends at the rate while the worker folds.
func (r *run) steady(ctx context.Context) (*Report, error) {
	if err := r.probes.first(ctx); err != nil {
		return nil, err
	}
	if err := r.load(ctx, r.Warmup); err != nil {
		return nil, err
	}
	r.probes.begin()
	start, before := time.Now(), r.sent
	cpu, err := measure.Used(ctx, r.Client, measure.CPU, func() error { return r.load(ctx, r.Duration) })
	if err != nil {
		return nil, err
	}
	out := report(r.sent-before, time.Since(start), cpu)
	if out.Unread, err = r.unread(ctx); err != nil {
		return nil, err
	}
	out.Decisions = r.probes.report()
	return out, nil
}

// drain times how long the worker takes to fold what was appended before it started.
func (r *run) drain(ctx context.Context) (*Report, error) {
	start := time.Now() // when no event was folded yet; the first one was at most 20 ms later
	cpu, err := measure.Used(ctx, r.Client, measure.CPU, func() error {
		for left := r.sent; left > 0; {
			if !pause.For(ctx, 20*time.Millisecond) {
				return ctx.Err()
			}
			var err error
			if left, err = r.unread(ctx); err != nil {
				return err
			}
			if left == r.sent {
				start = time.Now()
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return report(r.sent, time.Since(start), cpu), nil
}

// report takes the CPU time of Redis in ns.
func report(events int64, wall time.Duration, cpu float64) *Report {
	return &Report{Events: events, Seconds: wall.Seconds(), EventsPerS: float64(events) / wall.Seconds(),
		RedisCPUUs: cpu / 1000 / float64(max(1, events))}
}

// unread returns how many events the group has not acknowledged: not delivered, or pending.
func (r *run) unread(ctx context.Context) (int64, error) {
	var sum int64
	for p := range r.keys.Partitions {
		groups, err := r.Client.XInfoGroups(ctx, r.keys.Events(p)).Result()
		if err != nil || len(groups) == 0 { // not created yet: nothing was read
			n, err := r.Client.XLen(ctx, r.keys.Events(p)).Result()
			if err != nil {
				return 0, err
			}
			sum += n
			continue
		}
		sum += groups[0].Lag + groups[0].Pending
	}
	return sum, nil
}

func (r *run) clean(ctx context.Context, nc *nats.Conn) error {
	err := measure.Remove(ctx, r.Client, r.keys.Prefix)
	js, jsErr := nc.JetStream()
	if jsErr == nil {
		throttle, alert := alerts.StreamNames(r.keys.Prefix)
		for _, name := range []string{throttle, alert} {
			if e := js.DeleteStream(name); e != nil && !errors.Is(e, nats.ErrStreamNotFound) {
				jsErr = errors.Join(jsErr, e)
			}
		}
	}
	return errors.Join(err, jsErr)
}

// endsWithParent ends the worker when this process is killed, where the system can do that.
var endsWithParent *syscall.SysProcAttr

// withWorker runs a `work` process while do runs. It ends the process as SIGINT does, and returns the CPU time that the
// process used in total. If the process ends earlier, the context of do ends too.
func (r *run) withWorker(ctx context.Context, do func(context.Context) error) (time.Duration, error) {
	dir, err := os.MkdirTemp("", "streamcounter-bench")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "rules.yml")
	if err := os.WriteFile(file, fmt.Appendf(nil, rules, r.Algorithm), 0o600); err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, r.Program, "work", "--rules", file, "--prefix", r.keys.Prefix,
		"--partitions", strconv.Itoa(r.Partitions), "--http", "127.0.0.1:0")
	// The URLs are passed as variables, because everybody can read a command line.
	cmd.Env = append(os.Environ(), "STREAMCOUNTER_REDIS="+r.RedisURL, "STREAMCOUNTER_NATS="+r.NATSURL)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &said, &said, endsWithParent
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("starting the worker: %w", err)
	}
	running, ended := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		defer ended()
		_ = cmd.Wait() // its exit code says nothing about the measurement
	})
	if err = do(running); running.Err() != nil && ctx.Err() == nil {
		err = errEnded
	}
	_ = cmd.Process.Signal(os.Interrupt)
	waiting.Wait()
	if errors.Is(err, errNoDecision) || errors.Is(err, errEnded) {
		err = fmt.Errorf("%w; it said:\n%.16384s", err, said.String())
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), err
}

// Report is the result of a run. The names contain the units.
type Report struct {
	// The caller sets CommandLine and Redis, without secrets.
	CommandLine string  `json:"command_line"`
	Redis       string  `json:"redis"`
	Events      int64   `json:"events"`
	Seconds     float64 `json:"seconds"`
	EventsPerS  float64 `json:"events_per_s"`
	// RedisCPUUs is the CPU time of Redis's main thread per event, including the XADD (but not in a drain).
	RedisCPUUs float64 `json:"redis_cpu_us_per_event"`
	// WorkerCPUUs is the CPU time of the worker per event, from its start to its end.
	WorkerCPUUs float64 `json:"worker_cpu_us_per_event"`
	// Unread is how many events were not folded when the load ended.
	Unread int64 `json:"unread"`
	// Decisions is nil for a drain.
	Decisions *Decisions `json:"decisions,omitempty"`
}

// Decisions are latencies from the XADD to the message on NATS.
type Decisions struct {
	Count int64 `json:"count"`
	// Missing is how many decisions had not arrived when the load ended.
	Missing int   `json:"missing"`
	P50Us   int64 `json:"p50_us"`
	P90Us   int64 `json:"p90_us"`
	P99Us   int64 `json:"p99_us"`
	MaxUs   int64 `json:"max_us"`
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "%d events counted in %.1f s\n\n", r.Events, r.Seconds)
	fmt.Fprintf(t, "events/s\t%.0f\n", r.EventsPerS)
	fmt.Fprintf(t, "CPU per event\tRedis %.1f µs\tworker %.1f µs\n", r.RedisCPUUs, r.WorkerCPUUs)
	if d := r.Decisions; d != nil {
		fmt.Fprintf(t, "XADD to decision\tp50 %s\tp90 %s\tp99 %s\tmax %s\t(%d, %d not heard)\n",
			us(d.P50Us), us(d.P90Us), us(d.P99Us), us(d.MaxUs), d.Count, d.Missing)
		fmt.Fprintf(t, "not folded at the end\t%d\n", r.Unread)
	}
	fmt.Fprintf(t, "\nby: %s\n", r.CommandLine)
	return t.Flush()
}

func us(n int64) string { return (time.Duration(n) * time.Microsecond).String() }
