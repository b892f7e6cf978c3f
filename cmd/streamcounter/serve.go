package main

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/windows"
)

func newServe() *cobra.Command {
	c := newConfig()
	c.NATS.URL = ""
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Answer checks and take events over HTTP and gRPC",
		Long: `Answers checks from the shared count, each in one atomic step: over HTTP, and over
gRPC for Envoy's rate limit service. Also takes events over HTTP. Run as many as you
need.`,
		Example: `  streamcounter serve --redis redis://redis:6379 --rules rules.yml --http 127.0.0.1:8080
  curl -i 'http://127.0.0.1:8080/v1/check?key=user:42'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return role{parts: serveParts}.run(cmd, c) },
	}
	c.flags(cmd, "redis", "nats", "rules", "listen", "grpc", "checks", "stream", "process")
	cmd.Flags().Lookup("nats").Usage = "NATS, to show decisions and alerts on the page and in histories; " +
		"empty: without them [" + envName("nats") + "]"
	return cmd
}

// part opens one part of a process, or says why it cannot.
type part func(*node, context.Context) error

// What each process is made of, in the order of its start.
var (
	everyPart = []part{
		(*node).openTraces, // first, as it stops last
		(*node).openAccess, // tokens and certificates
		(*node).listen,     // all addresses: a taken port ends the start before anything is touched
		(*node).openRedis,  // compares prefix and partitions with what is there, and records the rules
		(*node).openOverrides,
		(*node).openActivity,
	}
	serveParts = []part{(*node).openOptionalNATS, (*node).openChecks, (*node).openPage}
	// consumers/worker.go says how events are counted
	workParts = []part{(*node).openNATS, (*node).openWorkers, (*node).openSinks}
	devParts  = slices.Concat(workParts, []part{(*node).openChecks, (*node).openPage})
	lastPart  = []part{(*node).openServers}
)

// role holds the differences between serve, work and dev.
type role struct {
	parts   []part
	example *windows.Rules // counts where neither --rules nor --rls-config is given; nil: one of them is required
	ready   func(*node)    // tells the user that it runs; nil: the log does
	alone   bool           // it refuses a prefix that other processes use with other rules
	// These replace the addresses and the source of rules of serve; nil keeps them.
	transports []transport
	rules      func(*config, *slog.Logger) (ruleSource, error)
}

// gcPercent lets the heap grow to five times the live data before it is collected. The heap
// holds mostly requests under way, and a check is a fifth cheaper. GOGC and GOMEMLIMIT say
// otherwise if they are set.
const gcPercent = 400

// run builds a node part by part, in the order in which a start can fail, and runs
// it until the command's context ends.
func (r role) run(cmd *cobra.Command, c *config) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	log := c.openLog(cmd.ErrOrStderr())
	if r.rules == nil {
		r.rules = func(c *config, log *slog.Logger) (ruleSource, error) { return openRules(c.Rules, r.example, log) }
	}
	rules, err := r.rules(c, log)
	if err != nil {
		return err
	}
	n := newNode(cmd.Name(), c, rules, log)
	n.alone = r.alone
	if r.transports != nil {
		n.transports = r.transports
	}
	defer n.stop()
	for _, open := range slices.Concat(everyPart, r.parts, lastPart) {
		if err := open(n, cmd.Context()); err != nil {
			return err
		}
	}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	n.followRules(ctx, &running)
	announcer := n.announcer()
	running.Go(func() { announcer.Run(ctx) })
	running.Go(func() { n.overrides.Run(ctx) })
	running.Go(func() { n.activity.Run(ctx) })
	if n.feed != nil {
		running.Go(func() { n.feed.Run(ctx) })
	}
	n.followFiles(ctx, &running)
	followed := maps.Clone(n.fresh)
	followed["rules"] = n.rules
	running.Go(func() { repeatRefusals(ctx, log, followed) })
	if came, err := n.waitForLimits(ctx); !came {
		return err
	}
	if r.ready == nil {
		r.ready = logReady
	}
	r.ready(n)
	return n.run(ctx)
}

func logReady(n *node) {
	fields := []any{slog.String("command", n.command)}
	for _, e := range n.endpoints {
		fields = append(fields, slog.String(e.name, e.listener.Addr().String()))
	}
	rules := n.rules.Rules()
	fields = append(fields, "redis", redact.URL(n.redisURL), "prefix", n.keys.Prefix, "process", n.name,
		"rules", len(rules.List()), "fingerprint", rules.Fingerprint())
	n.log.Info("ready", fields...)
}
