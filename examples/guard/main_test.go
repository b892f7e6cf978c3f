package main

import (
	"bufio"
	"context"
	"io"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// The jobs of a throttled key wait, and those of another key do not.
func TestJobsOfThrottledKeysWait(t *testing.T) {
	url, prefix := streamtest.NATS(t), streamtest.Prefix(t)
	nc, err := nats.Connect(url)
	testkit.Must(t, err)
	defer nc.Close()
	relay, err := alerts.NewPublisher(nc, alerts.PublisherConfig{Prefix: prefix})
	testkit.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	tick := make(chan time.Time)
	out, said := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, url, prefix, []string{"user:1", "user:2"}, tick, said)
		said.Close()
	}()
	lines := bufio.NewScanner(out)
	want := func(list ...string) {
		t.Helper()
		for _, w := range list {
			if !lines.Scan() || lines.Text() != w {
				t.Fatalf("it says %q, want %q", lines.Text(), w)
			}
		}
	}
	tick <- time.Time{}
	want("job of user:1 done", "job of user:2 done")
	now := time.Now().UnixMilli()
	err = relay.Publish(ctx, []api.Transition{{Rule: "api", Key: "user:1", State: api.StateThrottled, Level: 100,
		Limit: 5, WindowMs: 60_000, Used: 7,
		Version: now, AtMs: now, SinceMs: now, UntilMs: now + 60_000, ExpiresMs: now + 60_000}}, 0)
	testkit.Must(t, err)
	want("user:1 is throttled: 7 of 5")
	tick <- time.Time{}
	want("job of user:1 waits", "job of user:2 done")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
