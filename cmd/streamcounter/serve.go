package main

import (
	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/node"
	"github.com/streamcounter/streamcounter/internal/settings"
)

// serveParts are the parts that answer checks. With --nats, the page and histories also show decisions and alerts.
// internal/node/run.go has the parts that every process has.
var serveParts = []node.Part{node.OptionalNATS, node.Checks, node.Page}

func newServe() *cobra.Command {
	c := settings.New()
	c.NATS.URL = ""
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Answer checks and take events over HTTP and gRPC",
		Long: `Answers checks from the shared count, each in one atomic step: over HTTP, and over
gRPC for Envoy's rate limit service. Also takes events over HTTP. Run as many as you
need.`,
		Example: `  streamcounter serve --redis redis://redis:6379 --rules rules.yml --http 127.0.0.1:8080
  curl -i 'http://127.0.0.1:8080/v1/check?key=user:42'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return runNode(cmd, c, node.Role{Parts: serveParts}) },
	}
	c.Flags(cmd, "redis", "nats", "rules", "listen", "grpc", "checks", "stream", "process")
	cmd.Flags().Lookup("nats").Usage = "NATS, to show decisions and alerts on the page and in histories; " +
		"empty: without them [" + settings.EnvName("nats") + "]"
	return cmd
}

// workParts are the parts that count events, and publish and deliver decisions and alerts.
var workParts = []node.Part{node.NATS, node.Workers, node.Sinks}

func newWork() *cobra.Command {
	c := settings.New()
	c.HTTP, c.GRPC.Addr = "127.0.0.1:8081", ""
	cmd := &cobra.Command{
		Use:   "work",
		Short: "Count events, release expired throttles, publish to NATS",
		Long: `Counts the events of all partitions, each exactly once, together with any number of
other workers. Releases keys whose throttle has ended. Publishes decisions and alerts
to NATS. --http serves /metrics, /healthz and /readyz.`,
		Example: `  streamcounter work --redis redis://redis:6379 --nats nats://nats:4222 --rules rules.yml`,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runNode(cmd, c, node.Role{Parts: workParts}) },
	}
	c.Flags(cmd, "redis", "nats", "jetstream", "rules", "listen", "stream", "work", "sinks",
		"process")
	return cmd
}

// runNode runs the process of a command until the command's context ends.
func runNode(cmd *cobra.Command, c *settings.Config, r node.Role) error {
	return node.Run(cmd.Context(), nodeConfig(cmd, c), r)
}

func nodeConfig(cmd *cobra.Command, c *settings.Config) node.Config {
	b := thisBuild()
	return node.Config{Command: cmd.Name(), Build: node.Build{Version: b.Version, Commit: b.Commit, Go: b.Go},
		Settings: c, Stderr: cmd.ErrOrStderr()}
}
