package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/guard"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func (s *system) jetStream() jetstream.JetStream {
	s.t.Helper()
	return streamtest.JetStream(s.t, s.nats.URL())
}

// listener is an alert consumer: durable, acknowledging, there all the time.
type listener struct {
	mu    sync.Mutex
	heard map[uint64]string // sequence in the stream → id
}

func listen(t testing.TB, s *system) *listener {
	t.Helper()
	l := &listener{heard: map[uint64]string{}}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	js := s.jetStream()
	var c jetstream.Consumer
	streamtest.Eventually(t, "the stream of alerts is there", func() (bool, string) {
		var err error
		c, err = js.CreateOrUpdateConsumer(ctx, "SC_ALERTS",
			jetstream.ConsumerConfig{Durable: "listener", AckPolicy: jetstream.AckExplicitPolicy,
				AckWait: 2 * time.Second})
		return err == nil, fmt.Sprint(err)
	})
	consuming, err := c.Consume(func(m jetstream.Msg) {
		meta, err := m.Metadata()
		if err != nil {
			t.Error(err)
			return
		}
		var tr api.Transition
		if err := json.Unmarshal(m.Data(), &tr); err != nil {
			t.Error(err)
		}
		l.mu.Lock()
		l.heard[meta.Sequence.Stream] = tr.ID
		l.mu.Unlock()
		_ = m.Ack() // one that is lost brings the message again
	}, jetstream.PullHeartbeat(500*time.Millisecond), jetstream.PullExpiry(2*time.Second))
	testkit.Must(t, err)
	t.Cleanup(func() {
		consuming.Stop()
		<-consuming.Closed()
	})
	return l
}

// heardAll waits until it has heard what stands in the stream.
func (l *listener) heardAll(t testing.TB, want map[uint64]string) {
	t.Helper()
	streamtest.Eventually(t, "the durable consumer has heard every alert", func() (bool, string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return maps.Equal(l.heard, want), fmt.Sprintf("heard %d of %d", len(l.heard), len(want))
	})
}

// startGuard subscribes to throttle decisions as a service does, for the whole run.
func startGuard(t testing.TB, s *system) *guard.Guard {
	t.Helper()
	nc := streamtest.ConnectNATS(t, s.nats.URL())
	g, err := guard.New(nc, guard.Config{})
	testkit.Must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		nc.Close()
	})
	return g
}

// verifyGuard: at the end the guard throttles the keys that are at their limit for
// the day, and no other. It gives how many these are.
func (v *verdict) verifyGuard(g *guard.Guard) (throttled int) {
	v.t.Helper()
	full := map[string]bool{}
	for key := range v.logs {
		if falls(key) {
			continue
		}
		if amounts, limit := v.levels(key); len(amounts) > 0 && amounts[len(amounts)-1] >= limit {
			full[key] = true
		}
	}
	streamtest.Eventually(v.t, "the guard knows who is throttled", func() (bool, string) {
		wrong := ""
		for key := range v.logs {
			if g.Throttled(key) != full[key] {
				wrong = fmt.Sprintf("%s: throttled %v, its count says %v", key, g.Throttled(key), full[key])
			}
		}
		return wrong == "", wrong
	})
	return len(full)
}
