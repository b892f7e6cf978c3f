package main

import (
	"github.com/spf13/cobra"
)

// workParts count events, and publish and deliver what follows from them.
var workParts = []Part{NATS, Workers, Sinks}

func newWork() *cobra.Command {
	c := newConfig()
	c.HTTP, c.GRPC.Addr = "127.0.0.1:8081", ""
	cmd := &cobra.Command{
		Use:   "work",
		Short: "Count events, release expired throttles, publish to NATS",
		Long: `Counts the events of all partitions, each exactly once, together with any number of
other workers. Releases keys whose throttle has ended. Publishes decisions and alerts
to NATS. --http serves /metrics, /healthz and /readyz.`,
		Example: `  streamcounter work --redis redis://redis:6379 --nats nats://nats:4222 --rules rules.yml`,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runNode(cmd, c, Role{Parts: workParts}) },
	}
	c.flags(cmd, "redis", "nats", "jetstream", "rules", "listen", "stream", "work", "sinks",
		"process")
	return cmd
}
