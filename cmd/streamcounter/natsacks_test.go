package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// The users of deploy/ that acknowledge alerts can do so with both forms of acknowledgement subjects (ADR-15 of
// NATS): the present one, and the one that begins with a domain and the account.
func TestAcknowledgementsOfBothForms(t *testing.T) {
	for form, prefix := range map[bool]string{false: "$JS.ACK.SC_ALERTS.", true: "$JS.ACK._."} {
		t.Run(fmt.Sprint("js_ack_fc_v2 ", form), func(t *testing.T) {
			ctx := t.Context()
			server := streamtest.NewSecuredNATS(t, fmt.Sprintf("feature_flags { js_ack_fc_v2: %v }", form))
			nc, _ := natsAs(t, server, "relay")
			publisher, err := alerts.NewPublisher(nc, alerts.PublisherConfig{Prefix: "sc"})
			testkit.Must(t, err)
			testkit.Must(t, publisher.Ensure(ctx))
			hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			defer hook.Close()
			deliver := startProgram(t, "sinks", "--nats", server.As("sinks"), "--http", "127.0.0.1:0", "--sinks",
				testkit.WriteFile(t, "sinks.yml", fmt.Sprintf("sinks:\n  - {name: am, type: alertmanager, url: %q}\n",
					hook.URL)))
			_, sinks := natsAs(t, server, "sinks")
			_, pages := natsAs(t, server, "alerts")
			pager, err := pages.CreateOrUpdateConsumer(ctx, "SC_ALERTS",
				jetstream.ConsumerConfig{Durable: "pager", AckPolicy: jetstream.AckExplicitPolicy})
			testkit.Must(t, err)
			consumer := func() (*jetstream.ConsumerInfo, error) {
				c, err := sinks.Consumer(ctx, "SC_ALERTS", "sink-am")
				if err != nil {
					return nil, err
				}
				return c.Info(ctx)
			}
			streamtest.Eventually(t, 30*time.Second, "the sink has its consumer", func() (bool, string) {
				_, err := consumer()
				return err == nil, fmt.Sprint(err)
			})

			now := time.Now().UnixMilli()
			raised := api.Transition{Rule: "api", Key: "k", State: api.StateRaised, Level: 80, Limit: 10,
				WindowMs: 60_000, Used: 8, Version: now, AtMs: now, SinceMs: now, UntilMs: now + 60_000,
				ExpiresMs: now + 90_000}
			raised.ID = raised.MessageID("sc")
			testkit.Must(t, publisher.Publish(ctx, []api.Transition{raised}, 0))
			m, err := pager.Next(jetstream.FetchMaxWait(30 * time.Second))
			testkit.Must(t, err)
			if !strings.HasPrefix(m.Reply(), prefix) {
				t.Errorf("the acknowledgement goes to %s, want one that begins with %s", m.Reply(), prefix)
			}
			testkit.Must(t, m.DoubleAck(ctx))
			streamtest.Eventually(t, 30*time.Second, "the sink has acknowledged", func() (bool, string) {
				info, err := consumer()
				return err == nil && info.AckFloor.Stream == 1, fmt.Sprintf("%+v, %v", info, err)
			})
			if code := deliver.interrupt(); code != 0 {
				t.Errorf("exit code %d:\n%s", code, deliver.text())
			}
			if list := server.Violations(); len(list) > 0 {
				t.Errorf("NATS refused:\n%s", strings.Join(list, "\n"))
			}
		})
	}
}
