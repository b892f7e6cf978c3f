package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/alerts/sinks"
	"github.com/streamcounter/streamcounter/internal/redact"
)

// sinksParts are those of a process that only delivers alerts: it needs no Redis.
var sinksParts = []part{(*node).openAccess, (*node).listen, (*node).openNATS, (*node).openSinks,
	(*node).openServers}

const noSinks = "missing --sinks FILE (%s)"

func newSinks() *cobra.Command {
	c := newConfig()
	c.HTTP, c.GRPC.Addr = "127.0.0.1:8083", ""
	cmd := &cobra.Command{
		Use:   "sinks",
		Short: "Deliver alerts to webhooks, Alertmanager and Slack",
		Long: `Reads alerts from JetStream and delivers them to the sinks of a file: signed
webhooks, Alertmanager, Slack. Each sink keeps its own place in the stream, so
nothing is lost while its endpoint is down, and no sink waits for another. Several
processes may run: one delivers for a sink, the others wait to take over.
work --sinks FILE does the same inside a worker. --http serves /metrics.`,
		Example: `  streamcounter sinks --sinks sinks.yml --nats nats://sinks:PASSWORD@nats:4222
  streamcounter sinks check sinks.yml
  streamcounter sinks test pager --sinks sinks.yml`,
		RunE: func(cmd *cobra.Command, _ []string) error { return runSinks(cmd, c) },
	}
	c.flags(cmd, "nats", "jetstream", "listen", "prefix", "sinks", "process")
	cmd.AddCommand(newSinksCheck(), newSinksTest())
	return cmd
}

func runSinks(cmd *cobra.Command, c *config) error {
	log := c.openLog(cmd.ErrOrStderr())
	if c.Sinks == "" {
		return badUsage(noSinks, envName("sinks"))
	}
	n := newNode(cmd.Name(), c, nil, log)
	defer n.stop()
	for _, open := range sinksParts {
		if err := open(n, cmd.Context()); err != nil {
			return err
		}
	}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	n.followFiles(ctx, &running)
	log.Info("ready", "command", n.command, "http", n.endpoints[0].listener.Addr().String(), "nats",
		redact.URL(n.natsURL), "prefix", c.Stream.Prefix, "process", n.name)
	return n.run(ctx)
}

// openSinks makes the sinks, if a file of them is given.
func (n *node) openSinks(context.Context) error {
	if n.config.Sinks == "" {
		return nil
	}
	file, err := sinks.Open(n.config.Sinks, n.log)
	if err != nil {
		return blame("sinks", err)
	}
	n.fresh["sinks"] = file
	n.sinks, err = sinks.NewGroup(sinks.Config{NATS: n.nc, Prefix: n.config.Stream.Prefix, Name: n.name,
		Replicas: n.config.NATS.Replicas, File: file, Metrics: sinks.NewMetrics(n.registry), Stop: n.config.Stop,
		Log: n.log})
	return err
}

func newSinksCheck() *cobra.Command {
	c := newConfig()
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a file of sinks, and say what each delivers",
		Long: `Checks a file of sinks and its files of secrets, as a start or a reload would. An
error has file, line and column, and the exit code is 1. Nothing is sent.`,
		Example: "  streamcounter sinks check sinks.yml",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				c.Sinks = args[0]
			}
			list, err := sinksOf(c.Sinks)
			if err != nil {
				return err
			}
			for _, s := range list {
				fmt.Fprintln(cmd.OutOrStdout(), s.String())
			}
			return nil
		},
	}
	c.flags(cmd, "sinks")
	return cmd
}

func newSinksTest() *cobra.Command {
	c := newConfig()
	cmd := &cobra.Command{
		Use:   "test NAME",
		Short: "Send a sample alert by one sink",
		Long: `Sends one alert of the rule "sample" and the key "sample:key" to the endpoint of a
sink, past the sink's filters, and says what the endpoint answered. It is sent once.
Alertmanager resolves it after resolve_after.`,
		Example: "  streamcounter sinks test pager --sinks sinks.yml",
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := sinksOf(c.Sinks)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(list, func(s *sinks.Sink) bool { return s.Name == args[0] })
			if i < 0 {
				var names []string
				for _, s := range list {
					names = append(names, s.Name)
				}
				return fmt.Errorf("no sink %q: %s has %s", args[0], c.Sinks, strings.Join(names, ", "))
			}
			if err := list[i].SendSample(cmd.Context(), c.Stream.Prefix); err != nil {
				return fmt.Errorf("sink %s: %w", args[0], err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "sink %s: the endpoint took the sample\n", args[0])
			return nil
		},
	}
	c.flags(cmd, "sinks", "prefix")
	return cmd
}

func sinksOf(path string) ([]*sinks.Sink, error) {
	if path == "" {
		return nil, badUsage(noSinks, envName("sinks"))
	}
	file, err := sinks.Open(path, nil)
	if err != nil {
		return nil, err
	}
	return file.Value(), nil
}
