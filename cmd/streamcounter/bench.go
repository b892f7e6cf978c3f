package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/bench/target"
	"github.com/streamcounter/streamcounter/internal/settings"
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
	f.StringVar(&run.Key, "key", "user:", "what the keys of the checks begin with")
	f.IntVar(&run.Keys, "keys", 1000, "how many keys there are")
	f.Float64Var(&run.ZipfS, "zipf-s", 0, "exponent of the keys' Zipf distribution, above 1; 0: uniform")
	f.IntVar(&run.Callers, "connections", 64, "callers at once")
	f.IntVar(&run.PerCall, "per-call", 1, "checks of one call")
	f.DurationVar(&run.Duration, "duration", 5*time.Second, "how long is measured")
	f.DurationVar(&run.Warmup, "warmup", time.Second, "how long the load runs before that; 0: no time")
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
	if asJSON {
		err = json.NewEncoder(cmd.OutOrStdout()).Encode(report)
	} else {
		err = report.WriteText(cmd.OutOrStdout())
	}
	switch {
	case err != nil:
		return err
	case cmd.Context().Err() != nil:
		return exitError{130, errors.New("interrupted; what was measured until then is above")}
	case report.Errors > 0:
		return fmt.Errorf("%d calls failed; the first: %s", report.Errors, report.FirstError)
	}
	return nil
}
