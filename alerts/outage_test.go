package alerts_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// NATS is away when the relay publishes: it waits, and then all is there, in
// the order of each subject, and none twice.
func TestPublishThroughAnOutage(t *testing.T) {
	server := streamtest.OwnNATS(t)
	nc := streamtest.ConnectNATS(t, server.URL())
	w := newWorld(t, nc)
	all := history(3, 6)
	testkit.Must(t, w.publisher.Publish(t.Context(), all[:6], 0))
	server.Stop()
	streamtest.Eventually(t, 20*time.Second, "the connection is lost",
		func() (bool, string) { return !nc.IsConnected(), nc.Status().String() })
	before, failed := nc.Stats().OutMsgs, w.count("failed")
	done := make(chan error, 1)
	go func() { done <- w.publisher.Publish(t.Context(), all[3:], 3) }() // three of them again
	streamtest.Eventually(t, 20*time.Second, "three tries fail", func() (bool, string) {
		n := w.count("failed") - failed
		return n >= 3, fmt.Sprint(n, " failed")
	})
	if n := nc.Stats().OutMsgs - before; n != 0 {
		t.Errorf("%d messages were left with the library, which would send each as often as it was tried", n)
	}
	server.Start()
	select {
	case err := <-done:
		testkit.Must(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("Publish does not return with NATS back")
	}
	wantInOrder(t, all, w.first(t, w.alerts, len(all)))
	s, err := w.js.Stream(t.Context(), w.alerts)
	testkit.Must(t, err)
	if n := s.CachedInfo().State.Msgs; n != uint64(len(all)) {
		t.Errorf("%d alerts are stored, want %d", n, len(all))
	}
}

func TestPublishEndsWithItsContext(t *testing.T) {
	server := streamtest.OwnNATS(t)
	w := newWorld(t, streamtest.ConnectNATS(t, server.URL()))
	server.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.publisher.Publish(ctx, history(1, 2), 0) }()
	streamtest.Eventually(t, 20*time.Second, "a publish fails", func() (bool, string) {
		n := w.count("failed")
		return n > 0, fmt.Sprint(n, " failed")
	})
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want one that wraps %v", err, context.Canceled)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Publish does not return after its context's end")
	}
}
