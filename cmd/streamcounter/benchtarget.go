package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/streamcounter/streamcounter/internal/bench/target"
)

// targetFlags are those of bench that only --target has a use for.
func targetFlags(f *pflag.FlagSet, c *target.Config) {
	f.StringVar(&c.URL, "target", "",
		"measure a running server: http://HOST:PORT, https://, grpc:// or grpcs://; 64 callers by default")
	f.StringVar(&c.Metrics, "metrics", "",
		"URL of the target's metrics, for its CPU (default: /metrics of an HTTP target)")
	f.IntVar(&c.PerCall, "per-call", 1, "checks of one call to the target")
	f.IntVar(&c.Channels, "channels", 4, "connections that the callers of a gRPC target share")
	f.StringVar(&c.Key, "key", "user:", "what the keys asked of the target begin with")
}

// runTarget measures a running server. --redis, where given, is that server's.
func runTarget(cmd *cobra.Command, redis redisConfig, run benchRun) error {
	f, c := cmd.Flags(), run.target
	c.Keys, c.Duration, c.Warmup, c.Seed = run.Keys, run.Duration, run.Warmup, run.Seed
	if f.Changed("connections") {
		c.Callers = run.Connections
	}
	if err := moreThanZero(f, "keys", "connections", "duration", "seed", "per-call", "channels"); err != nil {
		return err
	}
	for _, name := range []string{"algorithm", "partitions", "batch", "entries", "limit", "per", "deny", "rate",
		"operations", "skew", "zipf-s"} {
		if f.Changed(name) {
			return fmt.Errorf("--%s has no meaning with --target: the server's rules decide", name)
		}
	}
	if err := c.Validate(); err != nil {
		return err
	}
	if f.Changed("redis") {
		client, _, stop, err := measuredRedis(cmd.Context(), redis, 1)
		if err != nil {
			return err
		}
		defer stop()
		c.Redis = client
	}
	report, err := target.Run(cmd.Context(), c)
	if err != nil {
		return err
	}
	report.CommandLine = commandLine(cmd)
	if run.asJSON {
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
