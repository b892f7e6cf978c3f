package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/redact"
)

func newWatch() *cobra.Command {
	c := newConfig()
	var rule string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Print throttle decisions and alerts as they arrive",
		Long: `Subscribes like any service does: first the snapshot of who is throttled now,
then each decision and alert as it arrives, until Ctrl-C.`,
		Example: `  streamcounter watch
  streamcounter watch --rule api --json | jq .key`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runWatch(cmd, c, rule, asJSON) },
	}
	c.flags(cmd, "nats", "prefix")
	cmd.Flags().StringVar(&rule, "rule", "*", "only this rule")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the payloads, one a line")
	return cmd
}

func runWatch(cmd *cobra.Command, c *config, rule string, asJSON bool) error {
	ctx, prefix := cmd.Context(), c.Stream.Prefix
	nc, err := connectNATS(c.NATS, c.NATS.URL, nats.Name("streamcounter watch"), nats.MaxReconnects(-1))
	if err != nil {
		return blame("nats", fmt.Errorf("no NATS answers at %s: %w", redact.URL(c.NATS.URL), redact.Error(err)))
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	out := cmd.OutOrStdout()
	show := func(m jetstream.Msg) {
		mu.Lock()
		defer mu.Unlock()
		if asJSON {
			fmt.Fprintf(out, "%s\n", m.Data())
			return
		}
		var t api.Transition
		if err := json.Unmarshal(m.Data(), &t); err != nil {
			fmt.Fprintf(out, "%s: not a transition: %v\n", m.Subject(), err)
			return
		}
		printTransition(out, t)
	}
	throttle, alert := alerts.StreamNames(prefix)
	for _, s := range []struct {
		stream, subject string
		from            jetstream.DeliverPolicy
	}{
		{throttle, prefix + ".throttle." + rule + ".>", jetstream.DeliverLastPerSubjectPolicy},
		{alert, prefix + ".alert." + rule + ".>", jetstream.DeliverNewPolicy},
	} {
		consumer, err := orderedConsumer(ctx, cmd.ErrOrStderr(), js, s.stream,
			jetstream.OrderedConsumerConfig{FilterSubjects: []string{s.subject}, DeliverPolicy: s.from})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		consuming, err := consumer.Consume(show)
		if err != nil {
			return fmt.Errorf("reading %s: %w", s.stream, err)
		}
		defer consuming.Stop()
	}
	<-ctx.Done()
	return nil
}

// orderedConsumer waits for the stream: the first worker makes it.
func orderedConsumer(ctx context.Context, messages io.Writer, js jetstream.JetStream, name string,
	config jetstream.OrderedConsumerConfig) (jetstream.Consumer, error) {
	for told := false; ; told = true {
		c, err := js.OrderedConsumer(ctx, name, config)
		if !errors.Is(err, jetstream.ErrStreamNotFound) {
			if err != nil {
				err = fmt.Errorf("stream %s: %w", name, err)
			}
			return c, err
		}
		if !told {
			fmt.Fprintf(messages, "waiting for the stream %s: the first worker creates it\n", name)
		}
		if !pause.For(ctx, time.Second) {
			return nil, ctx.Err()
		}
	}
}

func printTransition(w io.Writer, t api.Transition) {
	what := string(t.State)
	if !t.IsThrottle() {
		what = "alert " + strconv.Itoa(t.Level) + "% " + what
	}
	if t.Shadow {
		what += " (shadow)"
	}
	if t.Rule == api.OverrideRule {
		fmt.Fprintf(w, "%s  %-18s %s  by an operator", t.At().Local().Format("15:04:05.000"), what, t.Key)
		if t.Reason != "" {
			fmt.Fprintf(w, ": %s", t.Reason)
		}
		fmt.Fprintln(w)
		return
	}
	fmt.Fprintf(w, "%s  %-18s %s  rule %s: %d of %d per %s", t.At().Local().Format("15:04:05.000"), what, t.Key,
		t.Rule, t.Used, t.Limit, millis(t.WindowMs))
	if t.State == api.StateThrottled || t.State == api.StateRaised {
		fmt.Fprintf(w, ", until %s", time.UnixMilli(t.UntilMs).Local().Format("15:04:05.000"))
	}
	fmt.Fprintln(w)
}
