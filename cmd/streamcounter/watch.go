package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/natsconn"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/internal/subscription"
	"github.com/streamcounter/streamcounter/windows"
)

// everyRule matches the name of every rule, as in a NATS subject.
const everyRule = "*"

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
	cmd.Flags().StringVar(&rule, "rule", everyRule, "only this rule")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the payloads, one a line")
	return cmd
}

func runWatch(cmd *cobra.Command, c *settings.Config, rule string, asJSON bool) error {
	if err := windows.CheckName(rule); err != nil && rule != everyRule {
		return settings.UsageErrorf("--rule is %q: %w", rule, err)
	}
	prefix := c.Stream.Prefix
	log := c.OpenLog(cmd.ErrOrStderr())
	closed := make(chan error, 1)
	nc, err := backend.ConnectNATS(c.NATS, natsconn.Config{URL: c.NATS.URL, Name: "streamcounter watch", Log: log,
		Status: &natsconn.Status{OnClosed: func(err error) { closed <- err }}})
	if err != nil {
		return backend.NATSUnreachable(c.NATS.URL, err)
	}
	defer nc.Close()
	w := &watcher{out: cmd.OutOrStdout(), messages: cmd.ErrOrStderr(), rule: rule, asJSON: asJSON,
		server: redact.URL(c.NATS.URL), missing: 2}
	throttle, alert := alerts.StreamNames(prefix)
	both, ctx := errgroup.WithContext(cmd.Context())
	both.Go(func() error {
		return w.read(ctx, subscription.Config{NC: nc, Stream: alert, From: jetstream.DeliverNewPolicy,
			Subjects: []string{prefix + ".alert." + rule + ".>"}})
	})
	both.Go(func() error {
		return w.read(ctx, subscription.Config{NC: nc, Stream: throttle, From: jetstream.DeliverLastPerSubjectPolicy,
			Subjects: []string{prefix + ".throttle." + rule + ".>"}})
	})
	err = both.Wait()
	if errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("the connection to NATS is closed for good: %w", <-closed)
	}
	return err
}

// watcher prints the messages that arrive. It is safe to use from several goroutines.
type watcher struct {
	out, messages io.Writer
	server, rule  string
	asJSON        bool

	mu        sync.Mutex
	throttled int // number of throttled keys, while earlier decisions are read
	missing   int // number of streams whose earlier messages are not all read
}

// read prints the messages of a stream until ctx ends. When both streams are read up to now, it also prints that it is
// connected.
func (w *watcher) read(ctx context.Context, c subscription.Config) error {
	begun, upToNow := false, false
	c.Failed = func(err error) error { return w.failed(err, c.Stream, begun) }
	return subscription.Run(ctx, c, func(d subscription.Delivery) {
		w.mu.Lock()
		defer w.mu.Unlock()
		begun = true
		for _, m := range d.Messages {
			w.show(m)
		}
		if d.Whole && !upToNow {
			upToNow = true
			if w.missing--; w.missing == 0 {
				w.connected()
			}
		}
	})
}

// connected prints that watch works, for a user who sees no message yet, and that the rule may have another name.
func (w *watcher) connected() {
	fmt.Fprintf(w.messages, "connected to %s: %d throttled, waiting\n", w.server, w.throttled)
	if w.rule != everyRule && w.throttled == 0 {
		fmt.Fprintf(w.messages, "no decision of a rule %q is stored; check the name\n", w.rule)
	}
}

func (w *watcher) show(m jetstream.Msg) {
	t, err := api.ReadTransition(m.Subject(), m.Data())
	if err == nil && w.missing > 0 && t.State == api.StateThrottled {
		w.throttled++
	}
	switch {
	case w.asJSON:
		fmt.Fprintf(w.out, "%s\n", m.Data())
	case err != nil:
		fmt.Fprintf(w.out, "%s: subscribers ignore it: %v\n", m.Subject(), err)
	default:
		printTransition(w.out, t)
	}
}

// failed prints why no message arrives. At the start, an error that a retry cannot fix ends watch.
func (w *watcher) failed(err error, stream string, begun bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		fmt.Fprintf(w.messages, "waiting for the stream %s: the first worker creates it\n", stream)
	case begun || alerts.HasNoLeader(err):
		fmt.Fprintf(w.messages, "cannot read %s, trying again: %v\n", stream, err)
	case errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("%w: is JetStream enabled there (nats-server -js)?", err)
	default:
		return err
	}
	return nil
}

// printTransition prints one line. It prints nothing for an alert of 100 %, because the throttle decision says the
// same.
func printTransition(w io.Writer, t api.Transition) {
	if !t.IsThrottle() && t.Level == api.LevelThrottled {
		return
	}
	what, why := stateText(t), "by an operator"
	switch {
	case t.IsBlock() && t.State == api.StateReleased:
		what = "block ended"
	case t.IsBlock():
		what, why = "blocked", "by an operator, "+blockLasts(t)
		if t.Reason != "" {
			why += ": " + t.Reason
		}
	default:
		why = "rule " + t.Rule + ": " + useText(t.Used, t.Limit, "per "+millis(t.WindowMs), t.InFlight)
		if t.State == api.StateThrottled || t.State == api.StateRaised {
			why += ", until " + time.UnixMilli(t.UntilMs).Local().Format(clock)
		}
		why += inForceText(t.InForce)
	}
	fmt.Fprintf(w, "%s  %-18s %s  %s\n", t.At().Local().Format(clock), what, t.Key, why)
}

// clock is the form of a time of this day.
const clock = "15:04:05.000"

// stateText returns what has happened: throttled, or alert 80% raised.
func stateText(t api.Transition) string {
	what := string(t.State)
	if !t.IsThrottle() {
		what = fmt.Sprintf("alert %d%% %s", t.Level, t.State)
	}
	if t.Shadow {
		what += " (shadow)"
	}
	return what
}

// blockLasts returns until when a block is in effect.
func blockLasts(t api.Transition) string {
	if t.EndUnknown() {
		return "for more than a day, or until it is cleared"
	}
	return "until " + timeText(t.UntilMs)
}
