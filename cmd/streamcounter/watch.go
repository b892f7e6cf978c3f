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
	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/natsconn"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/settings"
)

func newWatch() *cobra.Command {
	c := settings.New()
	var rule string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Print throttle decisions and alerts as they arrive",
		Long: `Subscribes as a service does. Prints the last decision of each key first, then each
decision and alert as it arrives, until Ctrl-C. Alerts of 100% are printed with --json
only, as the decision says the same.`,
		Example: `  streamcounter watch
  streamcounter watch --rule api --json | jq .key`,
		RunE: func(cmd *cobra.Command, _ []string) error { return runWatch(cmd, c, rule, asJSON) },
	}
	c.Flags(cmd, "nats", "prefix")
	cmd.Flags().StringVar(&rule, "rule", "*", "only this rule")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the payloads, one a line")
	return cmd
}

func runWatch(cmd *cobra.Command, c *settings.Config, rule string, asJSON bool) error {
	ctx, prefix := cmd.Context(), c.Stream.Prefix
	log := c.OpenLog(cmd.ErrOrStderr())
	closed := make(chan error, 1)
	nc, err := backend.ConnectNATS(c.NATS, natsconn.Config{URL: c.NATS.URL, Name: "streamcounter watch", Log: log,
		Status: &natsconn.Status{OnClosed: func(err error) { closed <- err }}})
	if err != nil {
		return backend.NATSUnreachable(c.NATS.URL, err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	w := &watcher{out: cmd.OutOrStdout(), messages: cmd.ErrOrStderr(), rule: rule, asJSON: asJSON,
		server: redact.URL(c.NATS.URL)}
	throttle, alert := alerts.StreamNames(prefix)
	for _, s := range []struct {
		stream, subject string
		from            jetstream.DeliverPolicy
		show            func(jetstream.Msg)
	}{
		{alert, prefix + ".alert." + rule + ".>", jetstream.DeliverNewPolicy, w.show},
		{throttle, prefix + ".throttle." + rule + ".>", jetstream.DeliverLastPerSubjectPolicy, w.decision},
	} {
		consumer, err := orderedConsumer(ctx, cmd.ErrOrStderr(), js, s.stream,
			jetstream.OrderedConsumerConfig{FilterSubjects: []string{s.subject}, DeliverPolicy: s.from})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if s.stream == throttle && consumer.CachedInfo().NumPending == 0 {
			w.connected()
		}
		consuming, err := consumer.Consume(s.show)
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

// watcher prints the messages that arrive. It is safe to use from several goroutines.
type watcher struct {
	out, messages io.Writer
	server, rule  string
	asJSON        bool

	mu        sync.Mutex
	throttled int  // number of throttled keys, while earlier decisions are read
	all       bool // all earlier decisions are read
}

// decision prints a throttle decision. After the last decision that was stored before the connection, it also prints
// that it is connected.
func (w *watcher) decision(m jetstream.Msg) {
	w.show(m)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all {
		return
	}
	var t api.Transition
	if json.Unmarshal(m.Data(), &t) == nil && t.State == api.StateThrottled {
		w.throttled++
	}
	if meta, err := m.Metadata(); err == nil && meta.NumPending == 0 {
		w.connected()
	}
}

// connected tells a user who sees nothing yet that nothing has happened, or that the rule may have another name.
func (w *watcher) connected() {
	w.all = true
	fmt.Fprintf(w.messages, "connected to %s: %d throttled, waiting\n", w.server, w.throttled)
	if w.rule != "*" && w.throttled == 0 {
		fmt.Fprintf(w.messages, "no decision of a rule %q is stored; is that its name?\n", w.rule)
	}
}

func (w *watcher) show(m jetstream.Msg) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asJSON {
		fmt.Fprintf(w.out, "%s\n", m.Data())
		return
	}
	var t api.Transition
	if err := json.Unmarshal(m.Data(), &t); err != nil {
		fmt.Fprintf(w.out, "%s: not a transition: %v\n", m.Subject(), err)
		return
	}
	printTransition(w.out, t)
}

// orderedConsumer waits for the stream: the first worker creates it.
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

// printTransition prints one line. It prints nothing for an alert of 100 %, because the throttle decision says the
// same.
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
	if t.IsBlock() {
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
	fmt.Fprintln(w, inForceText(t.InForce))
}

// blockLasts returns until when a block is in effect. If a block ends more than a day later, or never, its decision
// is renewed each day, and outlasts its until by an hour.
func blockLasts(t api.Transition) string {
	if t.ExpiresMs-t.UntilMs >= time.Hour.Milliseconds() {
		return "for more than a day, or until it is cleared"
	}
	return "until " + timeText(t.UntilMs)
}
