package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/bench/pipeline"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/windows"
)

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
		"append this many events before the worker starts, and time only the worker; 0: no")
	f.IntVar(&run.Keys, "keys", 100_000, "how many keys there are")
	f.Float64Var(&run.ZipfS, "zipf-s", 1.1, "exponent of the keys' Zipf distribution, above 1; 0: uniform")
	f.StringVar(&run.Algorithm, "algorithm", windows.DefaultAlgorithm, "algorithm of the rule")
	f.DurationVar(&run.Duration, "duration", 10*time.Second, "how long is measured")
	f.DurationVar(&run.Warmup, "warmup", 2*time.Second, "how long the load runs before that")
	f.Uint64Var(&run.Seed, "seed", 1, "chooses the keys")
	f.BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

func runPipeline(cmd *cobra.Command, c *settings.Config, run pipeline.Config, asJSON bool) error {
	if err := settings.NotEmbedded("redis", c.Redis.URL); err != nil {
		return err
	}
	client, where, stop, err := measuredRedis(cmd.Context(), c.Redis, 4)
	if err != nil {
		return err
	}
	defer stop()
	run.Client, run.RedisURL, run.NATSURL, run.Partitions = client, c.Redis.URL, c.NATS.URL, c.Stream.Partitions
	port, embedded, err := settings.EmbeddedPort(c.NATS.URL, 0)
	if err != nil {
		return settings.Blame("nats", err)
	}
	if embedded {
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
	if asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(report)
	}
	return report.WriteText(cmd.OutOrStdout())
}
