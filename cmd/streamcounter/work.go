package main

import (
	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/node"
	"github.com/streamcounter/streamcounter/internal/settings"
)

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
