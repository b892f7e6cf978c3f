package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/alerts/sinks"
	"github.com/streamcounter/streamcounter/internal/node"
	"github.com/streamcounter/streamcounter/internal/settings"
)

func newSinks() *cobra.Command {
	c := settings.New()
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
		RunE: func(cmd *cobra.Command, _ []string) error { return node.RunSinks(cmd.Context(), nodeConfig(cmd, c)) },
	}
	c.Flags(cmd, "nats", "jetstream", "listen", "prefix", "sinks", "process")
	cmd.AddCommand(newSinksCheck(), newSinksTest())
	return cmd
}

func newSinksCheck() *cobra.Command {
	c := settings.New()
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
			list, err := sinksOf(c)
			if err != nil {
				return err
			}
			for _, s := range list {
				fmt.Fprintln(cmd.OutOrStdout(), s.String())
			}
			return nil
		},
	}
	c.Flags(cmd, "sinks")
	return cmd
}

func newSinksTest() *cobra.Command {
	c := settings.New()
	cmd := &cobra.Command{
		Use:   "test NAME",
		Short: "Send a sample alert by one sink",
		Long: `Sends one alert of the rule "sample" and the key "sample:key" to the endpoint of a
sink, whatever its filters are, and prints what the endpoint answered. It is sent once.
Alertmanager resolves it after resolve_after.`,
		Example: "  streamcounter sinks test pager --sinks sinks.yml",
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := sinksOf(c)
			if err != nil {
				return err
			}
			var names []string
			for _, s := range list {
				names = append(names, s.Name)
			}
			i := slices.Index(names, args[0])
			if i < 0 {
				return fmt.Errorf("no sink %q: %s has %s", args[0], c.Sinks, strings.Join(names, ", "))
			}
			if err := list[i].SendSample(cmd.Context(), c.Stream.Prefix); err != nil {
				return fmt.Errorf("sink %s: %w", args[0], err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "sink %s: the endpoint took the sample\n", args[0])
			return nil
		},
	}
	c.Flags(cmd, "sinks", "prefix")
	return cmd
}

func sinksOf(c *settings.Config) ([]*sinks.Sink, error) {
	path, err := c.SinksFile()
	if err != nil {
		return nil, err
	}
	file, err := sinks.Open(path, nil)
	if err != nil {
		return nil, err
	}
	return file.Value(), nil
}
