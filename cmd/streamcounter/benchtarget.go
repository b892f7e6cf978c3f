package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/bench/target"
)

// targetFlags are those of bench that only --target has a use for.
func targetFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.String("target", "", "measure a server that runs: http://HOST:PORT, https://, grpc:// or grpcs://; 64 callers by default")
	f.String("metrics", "", "URL of the target's metrics, which tell its CPU (default: /metrics of an HTTP target)")
	f.Int("per-call", 1, "checks of one call to the target")
	f.Int("channels", 4, "connections that the callers of a gRPC target share")
	f.String("key", "user:", "what the keys asked of the target begin with")
}

// runTarget measures a server that runs. --redis, where given, is that server's.
func runTarget(cmd *cobra.Command) error {
	f := cmd.Flags()
	c := target.Config{}
	c.URL, _ = f.GetString("target")
	c.Metrics, _ = f.GetString("metrics")
	c.PerCall, _ = f.GetInt("per-call")
	c.Channels, _ = f.GetInt("channels")
	c.Key, _ = f.GetString("key")
	c.Keys, _ = f.GetInt("keys")
	c.Duration, _ = f.GetDuration("duration")
	if c.Warmup, _ = f.GetDuration("warmup"); c.Warmup == 0 { // which would be taken for the default
		c.Warmup = -1
	}
	c.Seed, _ = f.GetUint64("seed")
	if f.Changed("connections") {
		c.Callers, _ = f.GetInt("connections")
	}
	for _, name := range []string{"keys", "connections", "duration", "seed", "per-call", "channels"} {
		if v := f.Lookup(name).Value.String(); v == "0" || v == "0s" {
			return fmt.Errorf("--%s is %s: expected more", name, v)
		}
	}
	for _, name := range []string{"algorithm", "partitions", "batch", "entries", "limit", "per", "deny", "rate", "operations", "skew", "zipf-s"} {
		if f.Changed(name) {
			return fmt.Errorf("--%s has no meaning with --target: the server's rules decide", name)
		}
	}
	if err := c.Validate(); err != nil {
		return err
	}
	if f.Changed("redis") {
		client, _, stop, err := measuredRedis(cmd, 1)
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
	if asJSON, _ := f.GetBool("json"); asJSON {
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
