package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/streamcounter/streamcounter/internal/bench"
	"github.com/streamcounter/streamcounter/internal/bench/target"
	"github.com/streamcounter/streamcounter/windows"
)

func newBench() *cobra.Command {
	c := newConfig()
	c.Redis.URL, c.Work.Batch = "embedded", 500
	var run benchRun
	cmd := &cobra.Command{
		Use:   "bench [append|fold|check|peek ...]",
		Short: "Measure what append, fold, check and peek cost on a Redis",
		Long: `Measures operations, all four if none is named, in CPU of Redis's main thread
and in time, each beside yardsticks that are measured in turn with it: an append
beside plain XADD, a fold beside XREADGROUP and XACK of the same events, a check
and a peek beside GET and an empty script, a check also beside GCRA. Speeds drift
from minute to minute; the ratio to a yardstick says more than a figure.

The embedded Redis is slow and does not report its CPU: give --redis for figures
that mean anything. All keys begin with a random prefix, sc-bench-…, and are removed at the
end, also after Ctrl-C, which prints what was measured until then. Others' keys
are not touched, but their requests wait behind these.

With --target a running server is measured: checks as callers send them, the CPU
of the server from its /metrics, and that of its Redis where --redis is given.

The exit code is 1 where any call failed.`,
		Example: `  streamcounter bench
  streamcounter bench check --redis redis://127.0.0.1:6379 --algorithm all --entries 1000
  streamcounter bench check --redis redis://127.0.0.1:6379 --rate 5000 --duration 30s
  streamcounter bench fold --redis redis://127.0.0.1:6379 --keys 100000 --skew zipf --json
  streamcounter bench --target grpc://127.0.0.1:8082 --metrics http://127.0.0.1:8080/metrics \
    --redis redis://127.0.0.1:6379`,
		ValidArgs: bench.Operations,
		RunE: func(cmd *cobra.Command, args []string) error {
			run.Operations, run.Partitions, run.Batch = args, c.Stream.Partitions, c.Work.Batch
			return runBench(cmd, c.Redis, run)
		},
	}
	c.flags(cmd, "redis", "partitions", "batch")
	cmd.Flags().Lookup("batch").Usage = "events of an append's pipeline, and most of one fold [" + envName("batch") +
		"]"
	f := cmd.Flags()
	f.StringSliceVar(&run.Algorithms, "algorithm", []string{windows.DefaultAlgorithm},
		"all, or some of "+strings.Join(windows.Algorithms, ", "))
	f.IntVar(&run.Keys, "keys", 1000, "how many keys there are")
	f.StringVar(&run.Skew, "skew", bench.Uniform, "how keys are chosen: "+bench.Uniform+" or "+bench.Zipf)
	f.Float64Var(&run.ZipfS, "zipf-s", 1.1, "how skewed: above 1")
	f.IntVar(&run.Entries, "entries", 0, "entries that each key has in its window beforehand (100 with --deny)")
	f.Int64Var(&run.Limit, "limit", 1_000_000_000, "limit of the window")
	f.DurationVar(&run.Per, "per", time.Minute, "length of the window")
	f.BoolVar(&run.Deny, "deny", false, "make --entries the limit, so that checks are denied")
	f.IntVar(&run.Connections, "connections", 8, "callers at once")
	f.DurationVar(&run.Duration, "duration", 3*time.Second,
		"how long each part is measured; its yardsticks come on top")
	f.IntVar(&run.Count, "operations", 0, "how many operations of each part are measured, in place of --duration")
	f.DurationVar(&run.Warmup, "warmup", 500*time.Millisecond,
		"how long each part runs before it is measured; 0: not at all")
	f.Float64Var(&run.Rate, "rate", 0,
		"checks and peeks started per second whatever becomes of the earlier ones; 0: each connection waits for "+
			"its answers")
	f.Uint64Var(&run.Seed, "seed", 1, "chooses the keys")
	f.BoolVar(&run.asJSON, "json", false, "print as JSON")
	targetFlags(f, &run.target)
	cmd.AddCommand(newBenchPipeline())
	return cmd
}

// benchRun is what the flags of bench say.
type benchRun struct {
	bench.Config
	target target.Config
	asJSON bool
}

// moreThanZero refuses a 0 that a measurement would take for its default.
func moreThanZero(f *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if v := f.Lookup(name).Value.String(); v == "0" || v == "0s" {
			return fmt.Errorf("--%s is %s: expected more", name, v)
		}
	}
	return nil
}

func runBench(cmd *cobra.Command, at redisConfig, run benchRun) error {
	if run.Warmup == 0 {
		run.Warmup = -1 // none: 0 would be the default
	}
	if run.target.URL != "" {
		if len(run.Operations) > 0 {
			return fmt.Errorf("%s has no meaning with --target: checks are what it measures", run.Operations[0])
		}
		return runTarget(cmd, at, run)
	}
	f := cmd.Flags()
	if err := moreThanZero(f, "keys", "zipf-s", "limit", "per", "connections", "duration", "seed"); err != nil {
		return err
	}
	cfg := run.Config
	if slices.Equal(cfg.Algorithms, []string{"all"}) {
		cfg.Algorithms = windows.Algorithms
	}
	if !f.Changed("limit") {
		cfg.Limit = 0 // the default, or --entries with --deny
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	c, where, stop, err := measuredRedis(cmd.Context(), at, cfg.Connections+2)
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
	report.CommandLine, report.Redis = commandLine(cmd, run.Operations...), where
	if run.asJSON {
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
