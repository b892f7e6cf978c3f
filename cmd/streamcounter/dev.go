package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/windows"
)

//go:embed example_rules.yml
var exampleRules []byte

func newDev() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, with embedded Redis and NATS",
		Long: `Runs the whole of streamcounter in one process: an embedded Redis, an embedded
NATS with JetStream, the consumers and the HTTP interface, with example rules.
Nothing is kept when it ends. The embedded Redis (miniredis) is for trying
things out: about a quarter of a real one's speed. With --redis URL or --nats URL
the real ones are used.`,
		Example: `  streamcounter dev
  streamcounter dev --rules my-rules.yml
  streamcounter dev --redis redis://127.0.0.1:6379 --nats embedded:14222`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return command{rules: devRules, example: true, add: addEverything, ready: func(n *node) { welcome(cmd.OutOrStdout(), n) }}.run(cmd)
		},
	}
	use(cmd, append(accessSettings, "redis", "nats", "nats-store", "nats-replicas", "rules", "rls-config", "rls-tag", "rls-algorithm", "extractors", "http", "grpc", "rls-headers", "prefix", "partitions", "retention", "check-timeout", "batch", "min-idle", "drain-timeout", "log-level"),
		"redis=embedded:16379", "nats=embedded:14222")
	return cmd
}

func addEverything(ctx context.Context, n *node) error {
	if err := n.openNATS(); err != nil {
		return err
	}
	if err := n.addWork(ctx); err != nil {
		return err
	}
	return n.addChecks()
}

func devRules(path string, log *slog.Logger) (*windows.Source, error) {
	if path != "" {
		return windows.NewSource(path, log)
	}
	r, err := windows.Parse("example_rules.yml (built in)", exampleRules)
	if err != nil {
		return nil, err
	}
	return windows.Fixed(r), nil
}

// welcome says where each part listens and what to try.
func welcome(w io.Writer, n *node) {
	rules := n.text("rules")
	if rules == "" {
		rules = "built-in example: user:* 100 per 10s and 1,000 per 1h; ip:* 300 per 1m; tenant:* 20 per 1s"
	}
	if l := n.limits(); l != nil {
		rules += fmt.Sprintf("; %d limits of %s", l.Len(), n.text("rls-config"))
	}
	p := n.keys.Partition("user:42")
	base := "http://" + n.httpAddr
	if n.tls != nil {
		base = "https://" + n.httpAddr
	}
	fmt.Fprintf(w, `streamcounter runs.
  Redis    %s
  NATS     %s
  HTTP     %s  (checks, events, /metrics)
  gRPC     %s  (Envoy's rate limit service)
  rules    %s

Try, in another terminal:
  curl -i '%s/v1/check?key=user:42&cost=60'
  redis-cli -u %s XADD %s '*' key user:42 count 50
  streamcounter watch --nats %s

Ctrl-C stops it.
`, redacted(n.redisURL), redacted(n.natsURL), base, n.grpc.addr(), rules, base, redacted(n.redisURL), n.keys.Events(p), redacted(n.natsURL))
}
