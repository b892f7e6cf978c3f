package pipeline

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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
	Rate  float64
	Drain int
	// Keys is how many keys there are. They are chosen by a Zipf distribution of exponent ZipfS (above 1), or
	// uniformly if ZipfS is 0.
	Keys       int
	ZipfS      float64
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

// run is one measurement.
type run struct {
	Config
	keys   *stream.Keys
	probes *probes
}

// Run measures. All keys begin with a random prefix and are removed at the end,
// as are the two JetStream streams.
func Run(ctx context.Context, c Config) (_ *Report, err error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	keys, err := stream.NewKeys("sc-bench-"+strings.ToLower(rand.Text()[:8]), c.Partitions)
	if err != nil {
		return nil, err
	}
	nc, err := natsconn.Connect(natsconn.Config{URL: c.NATSURL, Name: "streamcounter bench"})
	if err != nil {
		return nil, fmt.Errorf("NATS: %w", redact.Error(err))
	}
	defer nc.Close()
	r := &run{Config: c, keys: keys}
	defer func() { err = errors.Join(err, r.clean(context.WithoutCancel(ctx), nc)) }()
	if r.probes, err = newProbes(nc, r); err != nil {
		return nil, err
	}
	if c.Drain > 0 {
		return r.drain(ctx)
	}
	return r.steady(ctx)
}

func (c *Config) validate() error {
	switch {
	case c.Drain < 0:
		return fmt.Errorf("--drain is %d: expected at least 0", c.Drain)
	case c.Drain == 0 && (c.Rate <= 0 || c.Rate > 1e6):
		return fmt.Errorf("--rate is %g: expected more than 0, at most 1000000", c.Rate)
	case c.Keys < 2:
		return fmt.Errorf("--keys is %d: expected at least 2", c.Keys)
	}
	return measure.Keys{S: c.ZipfS}.Validate()
}

// steady appends at the rate while the worker folds.
func (r *run) steady(ctx context.Context) (*Report, error) {
	w, err := r.startWorker(ctx)
	if err != nil {
		return nil, err
	}
	defer w.stop()
	if err := r.probes.first(ctx, startTimeout); err != nil {
		return nil, fmt.Errorf("no decision from the worker: %w; it said:\n%s", err, w.said())
	}
	load := newLoad(r)
	if err := load.steady(ctx, r.Warmup); err != nil {
		return nil, err
	}
	r.probes.begin()
	start, before := time.Now(), load.sent
	cpu, err := r.redisCPU(ctx, func() error { return load.steady(ctx, r.Duration) })
	if err != nil {
		return nil, err
	}
	out := report(load.sent-before, time.Since(start), cpu)
	if out.Unread, err = r.unread(ctx); err != nil {
		return nil, err
	}
	out.Decisions, out.WorkerCPUUs = r.probes.report(), micros(w.stop(), load.sent)
	return out, nil
}

// drain appends first and then times how long one worker takes to fold everything.
func (r *run) drain(ctx context.Context) (*Report, error) {
	if err := newLoad(r).fill(ctx, r.Drain); err != nil {
		return nil, err
	}
	var w *worker
	var start time.Time // when the first event was folded
	cpu, err := r.redisCPU(ctx, func() (err error) {
		if w, err = r.startWorker(ctx); err != nil {
			return err
		}
		for left := int64(r.Drain); left > 0; {
			if !pause.For(ctx, 20*time.Millisecond) {
				return ctx.Err()
			}
			if left, err = r.unread(ctx); err != nil {
				return err
			}
			if start.IsZero() && left < int64(r.Drain) {
				start = time.Now()
			}
		}
		return nil
	})
	if w != nil {
		defer w.stop()
	}
	if err != nil {
		return nil, err
	}
	out := report(int64(r.Drain), time.Since(start), cpu)
	out.WorkerCPUUs = micros(w.stop(), int64(r.Drain))
	return out, nil
}

// redisCPU returns the CPU time that Redis's main thread used while do ran.
func (r *run) redisCPU(ctx context.Context, do func() error) (time.Duration, error) {
	before, err := measure.CPU(ctx, r.Client)
	if err == nil {
		err = do()
	}
	if err != nil {
		return 0, err
	}
	after, err := measure.CPU(ctx, r.Client)
	return after - before, err
}

func report(events int64, wall, cpu time.Duration) *Report {
	return &Report{Events: events, Seconds: wall.Seconds(), EventsPerS: float64(events) / wall.Seconds(),
		RedisCPUUs: micros(cpu, events)}
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

// worker is the `work` process of a run.
type worker struct {
	cmd    *exec.Cmd
	output *os.File
	dir    string
	cpu    time.Duration
	ended  bool
}

// said returns the beginning of the worker's output.
func (w *worker) said() string {
	b := make([]byte, 16<<10)
	n, _ := w.output.ReadAt(b, 0) // on an error the output is empty
	return string(b[:n])
}

func (r *run) startWorker(ctx context.Context) (*worker, error) {
	dir, err := os.MkdirTemp("", "streamcounter-bench")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "rules.yml")
	if err := os.WriteFile(file, fmt.Appendf(nil, rules, r.Algorithm), 0o600); err != nil {
		return nil, err
	}
	output, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		return nil, err
	}
	w := &worker{dir: dir, output: output}
	w.cmd = exec.CommandContext(ctx, r.Program, "work", "--rules", file, "--prefix", r.keys.Prefix,
		"--partitions", strconv.Itoa(r.Partitions), "--http", "127.0.0.1:0")
	// The URLs are passed as variables, because everybody can read a command line.
	w.cmd.Env = append(os.Environ(), "STREAMCOUNTER_REDIS="+r.RedisURL, "STREAMCOUNTER_NATS="+r.NATSURL)
	w.cmd.Stdout, w.cmd.Stderr, w.cmd.SysProcAttr = w.output, w.output, endsWithParent
	w.cmd.Cancel = func() error { return w.cmd.Process.Signal(os.Interrupt) }
	w.cmd.WaitDelay = 10 * time.Second
	if err := w.cmd.Start(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("starting the worker: %w", err)
	}
	return w, nil
}

// stop ends the process as SIGINT does and returns the CPU time that it used in total. It may be called twice.
func (w *worker) stop() time.Duration {
	if w.ended {
		return w.cpu
	}
	w.ended = true
	_ = w.cmd.Process.Signal(os.Interrupt)
	_ = w.cmd.Wait() // its exit code says nothing about the measurement
	_ = w.output.Close()
	_ = os.RemoveAll(w.dir)
	w.cpu = w.cmd.ProcessState.UserTime() + w.cmd.ProcessState.SystemTime()
	return w.cpu
}

func micros(d time.Duration, events int64) float64 {
	if events == 0 {
		return 0
	}
	return float64(d.Nanoseconds()) / 1000 / float64(events)
}
