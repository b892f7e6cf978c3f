package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/bench/pipeline"
	"github.com/streamcounter/streamcounter/internal/bench/target"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/windows"
)

func newBench() *cobra.Command {
	c, run := settings.New(), target.Config{}
	asJSON := false
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a running server, or (bench pipeline) events on their way to a decision",
		Long: `Sends checks to a running server, as callers do, and prints checks per second,
latency, and the CPU per check: of the server, from its /metrics, and with --redis
of its Redis. The checks are real: they charge keys that begin with --key, under the
server's rules.

The exit code is 1 if any call failed.`,
		Example: `  streamcounter bench --target http://127.0.0.1:8080
  streamcounter bench --target grpc://127.0.0.1:8082 --metrics http://127.0.0.1:8080/metrics \
    --redis redis://127.0.0.1:6379
  streamcounter bench pipeline --redis redis://127.0.0.1:6379 --rate 10000`,
		RunE: func(cmd *cobra.Command, _ []string) error { return runBench(cmd, c, run, asJSON) },
	}
	c.FlagsOnly = []string{"redis"}
	c.Flags(cmd, "redis", "caller")
	f := cmd.Flags()
	f.StringVar(&run.URL, "target", "", "the server: http://HOST:PORT, https://, grpc:// or grpcs://")
	f.StringVar(&run.Metrics, "metrics", "",
		"URL of the server's metrics, for its CPU (default: /metrics of an HTTP target)")
	f.StringVar(&run.Key, "key", "user:", "prefix of the keys of the checks")
	f.IntVar(&run.Keys.N, "keys", 1000, "how many keys there are")
	f.Float64Var(&run.Keys.S, "zipf-s", 0, "exponent of the keys' Zipf distribution, above 1; 0: uniform")
	f.IntVar(&run.Callers, "connections", 64, "callers at once")
	f.IntVar(&run.PerCall, "per-call", 1, "checks of one call")
	f.DurationVar(&run.Duration, "duration", 5*time.Second, "how long to measure")
	f.DurationVar(&run.Warmup, "warmup", time.Second, "how long the load runs before the measurement; 0: none")
	f.BoolVar(&asJSON, "json", false, "print as JSON")
	cmd.AddCommand(newBenchPipeline())
	return cmd
}

// runBench measures a running server. --redis, if it is given, is that server's Redis.
func runBench(cmd *cobra.Command, c *settings.Config, run target.Config, asJSON bool) (err error) {
	if run.URL == "" {
		return settings.UsageErrorf("no server to measure: give --target URL, such as http://127.0.0.1:8080")
	}
	if err := run.Validate(); err != nil {
		return settings.UsageError{Err: err}
	}
	run.Token = c.Caller.Token
	if run.TLS, err = askTLS(c); err != nil {
		return err
	}
	if cmd.Flags().Changed("redis") {
		client, _, stop, err := measuredRedis(cmd.Context(), c.Redis, 1)
		if err != nil {
			return err
		}
		defer stop()
		run.Redis = client
	}
	report, err := target.Run(cmd.Context(), run)
	if err != nil {
		return err
	}
	report.CommandLine = commandLine(cmd)
	switch err := printReport(cmd, report, asJSON, ""); {
	case err != nil:
		return err
	case cmd.Context().Err() != nil:
		return exitError{130, errors.New("interrupted; the report above has what was measured until then")}
	case report.Errors > 0:
		return fmt.Errorf("%d calls failed; the first: %s", report.Errors, report.FirstError)
	}
	return nil
}

func newBenchPipeline() *cobra.Command {
	c, run := settings.New(), pipeline.Config{}
	c.NATS.URL = "embedded"
	asJSON := false
	cmd := &cobra.Command{
		Use:   "pipeline",
		Short: "Measure events from XADD to the decision on NATS, through one worker",
		Long: `Starts one worker process of this program, appends events at a steady rate with
keys of a Zipf distribution, and measures the CPU of Redis's main thread and of the
worker per event. Twenty more keys a second cross a limit: they show how long a
decision takes from the XADD to its message on NATS.

With --drain the events are appended first, and the worker is timed while it counts
the backlog.

All keys begin with a random prefix, sc-bench-…, and are removed at the end. Nothing
else should use the Redis meanwhile, as its CPU is read as a whole.`,
		Example: `  streamcounter bench pipeline --redis redis://127.0.0.1:6379 --rate 10000
  streamcounter bench pipeline --redis redis://127.0.0.1:6379 --drain 1000000 --json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return runPipeline(cmd, c, run, asJSON) },
	}
	c.FlagsOnly = []string{"redis", "nats"}
	c.Flags(cmd, "redis", "nats", "partitions")
	f := cmd.Flags()
	f.Float64Var(&run.Rate, "rate", 1000, "events appended per second")
	f.IntVar(&run.Drain, "drain", 0,
		"append this many events before the worker starts, and time only the worker; 0: off")
	f.IntVar(&run.Keys.N, "keys", 100_000, "how many keys there are")
	f.Float64Var(&run.Keys.S, "zipf-s", 1.1, "exponent of the keys' Zipf distribution, above 1; 0: uniform")
	f.StringVar(&run.Algorithm, "algorithm", windows.DefaultAlgorithm, "algorithm of the rule")
	f.DurationVar(&run.Duration, "duration", 10*time.Second, "how long to measure")
	f.DurationVar(&run.Warmup, "warmup", 2*time.Second, "how long the load runs before the measurement")
	f.Uint64Var(&run.Seed, "seed", 1, "seed of the random keys")
	f.BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

func runPipeline(cmd *cobra.Command, c *settings.Config, run pipeline.Config, asJSON bool) error {
	if err := settings.NotEmbedded("redis", c.Redis.URL); err != nil {
		return err
	}
	if err := run.Validate(); err != nil {
		return settings.UsageError{Err: err}
	}
	if err := windows.CheckAlgorithm(run.Algorithm); err != nil {
		return settings.UsageErrorf("--algorithm: %w", err)
	}
	client, where, stop, err := measuredRedis(cmd.Context(), c.Redis, 4)
	if err != nil {
		return err
	}
	defer stop()
	run.Client, run.RedisURL, run.NATSURL, run.Partitions = client, c.Redis.URL, c.NATS.URL, c.Stream.Partitions
	if port, embedded := settings.EmbeddedPort(c.NATS.URL, 0); embedded {
		url, stop, err := backend.StartNATS(port, "", slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		defer stop()
		run.NATSURL = url
	}
	if run.Program, err = os.Executable(); err != nil {
		return fmt.Errorf("finding this program, to run it as a worker: %w", err)
	}
	report, err := pipeline.Run(cmd.Context(), run)
	if cmd.Context().Err() != nil {
		return exitError{130, errors.New("interrupted")}
	}
	if err != nil {
		return err
	}
	report.CommandLine, report.Redis = commandLine(cmd), where
	return printReport(cmd, report, asJSON, "")
}

// measuredRedis connects to --redis, with a pool of the given number of connections (0: the default of the library).
// It starts an embedded Redis first if --redis names one: on a free port, unless a port is given.
func measuredRedis(ctx context.Context, c settings.Redis, connections int) (client redis.UniversalClient, name string,
	closeAll func(), err error) {
	name, stop := redact.URL(c.URL), func() {}
	if port, embedded := settings.EmbeddedPort(c.URL, 0); embedded {
		var addr string
		if addr, stop, err = backend.StartRedis(port); err != nil {
			return nil, "", nil, err
		}
		name, c.URL = "embedded", "redis://"+addr
	}
	if client, err = backend.ConnectRedis(ctx, c, connections); err != nil {
		stop()
		return nil, "", nil, err
	}
	return client, name, func() {
		_ = client.Close()
		stop()
	}, nil
}

// commandLine returns the command line, without passwords.
func commandLine(cmd *cobra.Command) string {
	words := []string{cmd.CommandPath()}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		if strings.Contains(value, "://") {
			value = redact.URL(value)
		}
		if f.NoOptDefVal != "" { // in "--json true", true would be an argument
			words = append(words, "--"+f.Name+"="+value)
			return
		}
		words = append(words, "--"+f.Name, value)
	})
	return strings.Join(words, " ")
}
