package main

import (
	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/node"
	"github.com/streamcounter/streamcounter/internal/settings"
)

// ratelimitName is the name of the command, and of the program in the image that replaces envoyproxy/ratelimit.
const ratelimitName = "ratelimit"

func newRatelimit() *cobra.Command {
	c := settings.New()
	c.NATS.URL = ""
	cmd := &cobra.Command{
		Use:   ratelimitName,
		Short: "Drop-in replacement for envoyproxy/ratelimit (reads its environment variables)",
		Long: `Answers Envoy's rate limit service as envoyproxy/ratelimit does: at the same ports,
with limits from files or from an xDS server such as Envoy Gateway, configured by the
same environment variables (docs/envoy.md lists them). The program also does this if
its own name is ratelimit. A flag or its STREAMCOUNTER_ variable wins over a variable
of envoyproxy/ratelimit. Without --nats nothing is published.`,
		Example: `  REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 RUNTIME_ROOT=/data streamcounter ratelimit
  CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001 \
    CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 streamcounter ratelimit`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			parts := serveParts
			if c.NATS.URL != "" { // with NATS it publishes too
				parts = devParts
			}
			return runNode(cmd, c, node.Role{Parts: parts, RateLimit: true})
		},
	}
	c.Flags(cmd, "redis", "nats", "jetstream", "rules", "grpc", "tls-cert", "tls-key", "tls-client-ca",
		"max-connections", "check-timeout", "instances", "denial-cache", "stream", "work", "process")
	c.ReadRateLimit(cmd)
	return cmd
}
