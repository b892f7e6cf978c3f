package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/windows"
)

func newServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Answer checks and take events over HTTP and gRPC",
		Long: `Answers checks atomically from the shared count, over HTTP and, to Envoy's rate
limit service, over gRPC, and appends events. Run as many as you need.`,
		Example: `  streamcounter serve --redis redis://redis:6379 --rules rules.yml --http 127.0.0.1:8080
  curl -i 'http://127.0.0.1:8080/v1/check?key=user:42'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return command{rules: rulesFile, add: func(_ context.Context, n *node) error { return n.addChecks() }, ready: logReady}.run(cmd)
		},
	}
	use(cmd, append(accessSettings, "redis", "redis-ca", "redis-cert", "redis-key", "rules", "rls-config", "rls-tag", "rls-algorithm", "extractors", "http", "grpc", "rls-headers", "prefix", "partitions", "retention", "max-backlog", "check-timeout", "drain-timeout", "log-level"))
	return cmd
}

func newWork() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "work",
		Short: "Fold events, end levels, publish decisions and alerts",
		Long: `Reads the events of all partitions as one of any number of workers, folds each
exactly once, looks again at keys whose level may have ended, and publishes
decisions and alerts to NATS. --http serves /metrics, /healthz and /readyz.`,
		Example: `  streamcounter work --redis redis://redis:6379 --nats nats://nats:4222 --rules rules.yml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return command{rules: rulesFile, add: addWorker, ready: logReady}.run(cmd)
		},
	}
	use(cmd, append(accessSettings, "redis", "redis-ca", "redis-cert", "redis-key", "nats", "nats-creds", "nats-nkey", "nats-ca", "nats-cert", "nats-key", "nats-store", "nats-replicas", "rules", "rls-config", "rls-tag", "rls-algorithm", "http", "prefix", "partitions", "retention", "batch", "min-idle", "drain-timeout", "log-level"), "http=127.0.0.1:8081")
	return cmd
}

func addWorker(ctx context.Context, n *node) error {
	if err := n.openNATS(); err != nil {
		return err
	}
	n.addHealth()
	return n.addWork(ctx)
}

// command is what serve, work and dev differ in.
type command struct {
	// rules opens the rules; path is --rules.
	rules func(path string, log *slog.Logger) (*windows.Source, error)
	// example: without a path, rules gives an example.
	example bool
	// add wires what the command is for; Redis is open.
	add func(context.Context, *node) error
	// ready tells the user that it runs.
	ready func(*node)
}

// gcPercent lets the heap, which holds requests under way and little else, grow to
// five times what lives before it is collected: a check is a fifth cheaper. GOGC and
// GOMEMLIMIT say otherwise where they are set.
const gcPercent = 400

// run builds a node, in the order in which a start can fail, and runs it until
// the command's context ends.
func (c command) run(cmd *cobra.Command) error {
	o := options{cmd: cmd}
	if err := o.check(); err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	log, err := newLogger(cmd.ErrOrStderr(), o.text("log-level"))
	if err != nil {
		return err
	}
	rules, err := c.openRules(&o, log)
	if err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	n := newNode(o, rules, log)
	defer n.stop()
	if err := n.openAccess(); err != nil {
		return err
	}
	l, err := n.listen("http")
	if err != nil {
		return err
	}
	defer l.Close()
	n.httpAddr = l.Addr().String()
	if err := n.listenGRPC(); err != nil {
		return err
	}
	if err := n.openRedis(cmd.Context()); err != nil {
		return err
	}
	if err := c.add(cmd.Context(), n); err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	n.keepRulesFresh(ctx, &running)
	n.keepFilesFresh(ctx, &running)
	c.ready(n)
	return n.run(ctx, l)
}

// rulesFile opens the rules file that a server cannot do without.
func rulesFile(path string, log *slog.Logger) (*windows.Source, error) {
	if path == "" {
		return nil, blame("rules", errors.New("a rules file or --rls-config is required; `streamcounter dev` runs with an example"))
	}
	return windows.NewSource(path, log)
}

func logReady(n *node) {
	n.log.Info("ready", "command", n.cmd.Name(), "http", n.httpAddr, "grpc", n.grpc.addr(), "redis", redacted(n.redisURL), "prefix", n.keys.Prefix, "rules", len(n.rules.Rules().List()))
}
