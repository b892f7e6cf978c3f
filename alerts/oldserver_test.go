package alerts_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// oldServer greets like a NATS server of a version, and answers pings.
func oldServer(t *testing.T, version string) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprintf(c,
			`INFO {"server_id":"x","version":%q,"headers":true,"max_payload":1048576,"jetstream":true}`+"\r\n",
			version)
		for in := bufio.NewScanner(c); in.Scan(); {
			if in.Text() == "PING" {
				fmt.Fprint(c, "PONG\r\n")
			}
		}
	}()
	return "nats://" + l.Addr().String()
}

// A NATS server without per-message TTL is refused: no stream is created there and nothing is published, because each
// decision would stay forever.
func TestAnOldServerGetsNothing(t *testing.T) {
	nc, err := nats.Connect(oldServer(t, "2.10.29"))
	testkit.Must(t, err)
	defer nc.Close()
	ctx, cancel := context.WithCancel(t.Context())
	p, err := alerts.NewPublisher(nc, alerts.PublisherConfig{Prefix: "sc", Log: slog.New(slog.DiscardHandler),
		OnOutcome: func(outcome string) {
			if outcome == "failed" {
				cancel()
			}
		}})
	testkit.Must(t, err)
	if err := p.Ensure(t.Context()); !errors.Is(err, alerts.ErrOldServer) || !strings.Contains(err.Error(), "2.10.29") {
		t.Errorf("Ensure: %v", err)
	}
	err = p.Publish(ctx, []api.Transition{throttle("k", api.StateThrottled, 1000)}, 0)
	if !errors.Is(err, alerts.ErrOldServer) || !errors.Is(err, context.Canceled) {
		t.Errorf("Publish: %v", err)
	}
	if n := nc.Stats().OutMsgs; n != 0 {
		t.Errorf("%d messages were sent", n)
	}
}
