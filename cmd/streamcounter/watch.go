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

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/natsconn"
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
then each decision and alert as it arrives, until Ctrl-C. Alerts of 100% are printed
with --json only: the decision of the same crossing says what they say.`,
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
	log := c.openLog(cmd.ErrOrStderr())
	closed := make(chan error, 1)
	nc, err := connectNATS(c.NATS, natsconn.Config{URL: c.NATS.URL, Name: "streamcounter watch", Log: log,
		Status: &natsconn.Status{OnClosed: func(err error) { closed <- err }}})
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
	select {
	case err := <-closed:
		return fmt.Errorf("the connection to NATS is closed for good: %w", err)
	case <-ctx.Done():
		return nil
	}
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

// printTransition prints one line, and none for an alert of 100 %: the throttle decision says the same.
func printTransition(w io.Writer, t api.Transition) {
	if !t.IsThrottle() && t.Level == api.LevelThrottled {
		return
	}
	what := string(t.State)
	if !t.IsThrottle() {
		what = "alert " + strconv.Itoa(t.Level) + "% " + what
	}
	if t.Shadow {
		what += " (shadow)"
	}
	if t.Rule == api.OverrideRule {
		what = "blocked"
		if t.State == api.StateReleased {
			what = "block ended"
		}
		fmt.Fprintf(w, "%s  %-18s %s  by an operator", t.At().Local().Format("15:04:05.000"), what, t.Key)
		if t.State == api.StateReleased {
			fmt.Fprintln(w)
			return
		}
		fmt.Fprintf(w, ", %s", blockLasts(t))
		if t.Reason != "" {
			fmt.Fprintf(w, ": %s", t.Reason)
		}
		fmt.Fprintln(w)
		return
	}
	fmt.Fprintf(w, "%s  %-18s %s  rule %s: %s", t.At().Local().Format("15:04:05.000"), what, t.Key, t.Rule,
		useText(t.Used, t.Limit, "per "+millis(t.WindowMs), t.InFlight))
	if t.State == api.StateThrottled || t.State == api.StateRaised {
		fmt.Fprintf(w, ", until %s", time.UnixMilli(t.UntilMs).Local().Format("15:04:05.000"))
	}
	if t.Penalty != nil {
		fmt.Fprintf(w, ", penalty %d of %d", t.Penalty.Step, t.Penalty.Of)
	}
	fmt.Fprintln(w)
}

// blockLasts says until when a block is in effect. The decision of one that ends later than in a day, or not at all, is
// renewed each day, and outlasts its until by an hour (lua/overrides.lua).
func blockLasts(t api.Transition) string {
	if t.ExpiresMs-t.UntilMs >= time.Hour.Milliseconds() {
		return "for more than a day, or until it is cleared"
	}
	return "until " + timeText(t.UntilMs)
}
