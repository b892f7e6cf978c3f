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
	"time"

	"github.com/nats-io/nats.go"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// oldServer greets like a NATS server of a version, and returns what clients sent after their greeting.
func oldServer(t *testing.T, version string) (url string, sent <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	lines := make(chan string, 100)
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
			switch line := in.Text(); {
			case line == "PING":
				fmt.Fprint(c, "PONG\r\n")
			case strings.HasPrefix(line, "CONNECT"), line == "PONG":
			default:
				lines <- line
			}
		}
	}()
	return "nats://" + l.Addr().String(), lines
}

// A NATS server without per-message TTL is refused: no stream is created there and nothing is published, because each
// decision would stay forever.
func TestAnOldServerGetsNothing(t *testing.T) {
	url, sent := oldServer(t, "2.10.29")
	nc, err := nats.Connect(url)
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
	now := time.Now().UnixMilli()
	err = p.Publish(ctx, []api.Transition{{ID: "x", Rule: "api", Key: "k", State: api.StateThrottled, Level: 100,
		Limit: 1, WindowMs: 1000,
		Used: 1, AtMs: now, SinceMs: now, UntilMs: now + 1000, ExpiresMs: now + 2000}}, 0)
	if !errors.Is(err, alerts.ErrOldServer) || !errors.Is(err, context.Canceled) {
		t.Errorf("Publish: %v", err)
	}
	testkit.Must(t, nc.Flush())
	select {
	case line := <-sent:
		t.Errorf("it was sent %q", line)
	default:
	}
}
