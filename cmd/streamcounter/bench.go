package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/bench"
	"github.com/streamcounter/streamcounter/windows"
)

func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench [append|fold|check|peek ...]",
		Short: "Measure what append, fold, check and peek cost on a Redis",
		Long: `Measures operations, all four if none is named, in CPU of Redis's main thread
and in time, each beside yardsticks that are measured in turn with it: an append
beside plain XADD, a fold beside XREADGROUP and XACK of the same events, a check
and a peek beside GET and an empty script, a check also beside GCRA. Speeds drift
from minute to minute; the ratio to a yardstick says more than a figure.

The embedded Redis tells no CPU and is slow: give --redis for figures that mean
anything. All keys begin with a random prefix, sc-bench-…, and are removed at the
end, also after Ctrl-C, which prints what was measured until then. Others' keys
are not touched, but their requests wait behind these.

With --target a server that runs is measured: checks as callers send them, the
CPU of the server by its /metrics, and that of its Redis where --redis is given.

The exit code is 1 where any call failed.`,
		Example: `  streamcounter bench
  streamcounter bench check --redis redis://127.0.0.1:6379 --algorithm all --entries 1000
  streamcounter bench check --redis redis://127.0.0.1:6379 --rate 5000 --duration 30s
  streamcounter bench fold --redis redis://127.0.0.1:6379 --keys 100000 --skew zipf --json
  streamcounter bench --target grpc://127.0.0.1:8082 --metrics http://127.0.0.1:8080/metrics --redis redis://127.0.0.1:6379`,
		ValidArgs: bench.Operations,
		RunE:      runBench,
	}
	use(cmd, []string{"redis", "redis-ca", "redis-cert", "redis-key", "partitions", "batch"}, "redis=embedded", "batch=500")
	cmd.Flags().Lookup("batch").Usage = "events of an append's pipeline, and most of one fold [" + lookUp("batch").env() + "]"
	f := cmd.Flags()
	f.StringSlice("algorithm", []string{windows.DefaultAlgorithm}, "all, or some of "+strings.Join(windows.Algorithms, ", "))
	f.Int("keys", 1000, "how many keys there are")
	f.String("skew", bench.Uniform, "how keys are chosen: "+bench.Uniform+" or "+bench.Zipf)
	f.Float64("zipf-s", 1.1, "how skewed: above 1")
	f.Int("entries", 0, "entries that each key has in its window beforehand (100 with --deny)")
	f.Int64("limit", 1_000_000_000, "limit of the window")
	f.Duration("per", time.Minute, "length of the window")
	f.Bool("deny", false, "make --entries the limit, so that checks are denied")
	f.Int("connections", 8, "callers at once")
	f.Duration("duration", 3*time.Second, "how long each part is measured; its yardsticks come on top")
	f.Int("operations", 0, "how many operations of each part are measured, in place of --duration")
	f.Duration("warmup", 500*time.Millisecond, "how long each part runs before it is measured; 0: not at all")
	f.Float64("rate", 0, "checks and peeks started per second whatever becomes of the earlier ones; 0: each connection waits for its answers")
	f.Uint64("seed", 1, "chooses the keys")
	f.Bool("json", false, "print as JSON")
	targetFlags(cmd)
	return cmd
}

func benchConfig(cmd *cobra.Command, args []string) (bench.Config, error) {
	o, f := options{cmd: cmd}, cmd.Flags()
	c := bench.Config{Operations: args, Partitions: o.number("partitions"), Batch: o.number("batch")}
	c.Algorithms, _ = f.GetStringSlice("algorithm")
	if slices.Equal(c.Algorithms, []string{"all"}) {
		c.Algorithms = windows.Algorithms
	}
	c.Keys, _ = f.GetInt("keys")
	c.Skew, _ = f.GetString("skew")
	c.ZipfS, _ = f.GetFloat64("zipf-s")
	c.Entries, _ = f.GetInt("entries")
	if f.Changed("limit") {
		c.Limit, _ = f.GetInt64("limit")
	}
	c.Per, _ = f.GetDuration("per")
	c.Deny, _ = f.GetBool("deny")
	c.Connections, _ = f.GetInt("connections")
	c.Duration, _ = f.GetDuration("duration")
	c.Count, _ = f.GetInt("operations")
	if c.Warmup, _ = f.GetDuration("warmup"); c.Warmup == 0 {
		c.Warmup = -1
	}
	c.Rate, _ = f.GetFloat64("rate")
	c.Seed, _ = f.GetUint64("seed")
	// 0 would be taken for the default.
	for _, name := range []string{"keys", "zipf-s", "limit", "per", "connections", "duration", "seed"} {
		if v := f.Lookup(name).Value.String(); v == "0" || v == "0s" {
			return c, fmt.Errorf("--%s is %s: expected more", name, v)
		}
	}
	return c, o.err
}

func runBench(cmd *cobra.Command, args []string) error {
	if cmd.Flags().Changed("target") {
		if len(args) > 0 {
			return fmt.Errorf("%s has no meaning with --target: checks are what it measures", args[0])
		}
		return runTarget(cmd)
	}
	cfg, err := benchConfig(cmd, args)
	if err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	redis.SetLogger(redisLog{slog.New(slog.DiscardHandler)}) // failures are counted in the report
	c, where, stop, err := measuredRedis(cmd, cfg.Connections+2)
	if err != nil {
		return err
	}
	defer stop()
	bar := benchProgress(cmd.ErrOrStderr())
	if bar != nil {
		cfg.Progress = func(part string, done float64) {
			bar.Describe(part)
			_ = bar.Set(int(done * 1000)) // only the picture is at stake
		}
	}
	report, runErr := bench.Run(cmd.Context(), c, cfg)
	if bar != nil {
		_ = bar.Finish()
	}
	if report == nil {
		return runErr
	}
	if where == "embedded" {
		where += " (miniredis: time only, it tells no CPU and no memory)"
	}
	report.CommandLine, report.Redis = commandLine(cmd, args...), where
	if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
		err = json.NewEncoder(cmd.OutOrStdout()).Encode(report)
	} else {
		err = report.WriteText(cmd.OutOrStdout())
	}
	n, first := report.Errors()
	switch {
	case cmd.Context().Err() != nil:
		if !errors.Is(runErr, context.Canceled) {
			return exitError{130, runErr}
		}
		return exitError{130, errors.New("interrupted; what was measured until then is above")}
	case runErr != nil || err != nil:
		return errors.Join(runErr, err)
	case n > 0:
		return fmt.Errorf("%d calls failed; the first: %s", n, first)
	}
	return nil
}

func benchProgress(messages io.Writer) *progressbar.ProgressBar {
	if !isTerminal(messages) {
		return nil
	}
	return progressbar.NewOptions(1000, progressbar.OptionSetWriter(messages), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(false), progressbar.OptionThrottle(100*time.Millisecond))
}
