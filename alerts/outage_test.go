package alerts_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/streamtest"
)

// The subscriber stands in for JetStream and gives no ack for one message: it is
// sent again, the same, and the next of its subject only when it has its ack.
// Other subjects go on meanwhile.
func TestPublishSendsTheNextOfASubjectAfterTheAck(t *testing.T) {
	nc := connect(t, streamtest.NATS(t))
	w := newWorld(t, nc)
	heard := make(chan *nats.Msg, 100)
	_, err := nc.ChanSubscribe(w.prefix+".>", heard)
	must(t, err)
	a1, a2, b1, b2 := alert("a", api.StateRaised, 1), alert("a", api.StateCleared, 2), alert("b", api.StateRaised, 3), alert("b", api.StateCleared, 4)
	done := make(chan error, 1)
	go func() { done <- w.publisher.Publish(t.Context(), []api.Transition{a1, a2, b1, b2}) }()
	times := map[string]int{} // id → how often it came
	for published := false; !published; {
		select {
		case m := <-heard:
			id := m.Header.Get("Nats-Msg-Id")
			times[id]++
			if id == a1.MessageID(w.prefix) && times[id] < 3 {
				continue // no ack
			}
			if id == a2.MessageID(w.prefix) && times[a1.MessageID(w.prefix)] < 3 {
				t.Error("the second message came before the first had its ack")
			}
			must(t, m.Respond([]byte(`{"stream":"TEST","seq":1}`)))
		case err := <-done:
			must(t, err)
			published = true
		case <-time.After(30 * time.Second):
			t.Fatalf("Publish does not return; so often came %v", times)
		}
	}
	if n := w.count("acked"); n != 4 || len(times) != 4 {
		t.Errorf("%d had their ack of %v, want 4", n, times)
	}
}

// NATS is away when the relay publishes: it waits, and then all is there, in
// the order of each subject, and none twice.
func TestPublishThroughAnOutage(t *testing.T) {
	server := streamtest.OwnNATS(t)
	nc := connect(t, server.URL())
	w := newWorld(t, nc)
	all := history(3, 6)
	must(t, w.publisher.Publish(t.Context(), all[:6]))
	server.Stop()
	streamtest.Eventually(t, 20*time.Second, "the connection is lost", func() (bool, string) { return !nc.IsConnected(), nc.Status().String() })
	before, failed := nc.Stats().OutMsgs, w.count("failed")
	done := make(chan error, 1)
	go func() { done <- w.publisher.Publish(t.Context(), all[3:]) }() // three of them again
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
		must(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("Publish does not return with NATS back")
	}
	wantInOrder(t, all, w.first(t, w.alerts, len(all)))
	s, err := w.js.Stream(t.Context(), w.alerts)
	must(t, err)
	if n := s.CachedInfo().State.Msgs; n != uint64(len(all)) {
		t.Errorf("%d alerts are stored, want %d", n, len(all))
	}
}

// NATS goes again and again while much is published.
func TestPublishThroughManyOutages(t *testing.T) {
	server := streamtest.OwnNATS(t)
	w := newWorld(t, connect(t, server.URL()))
	all := history(20, 60)
	done := make(chan error, 1)
	go func() { done <- w.publisher.Publish(t.Context(), all) }()
	for i := range 3 {
		atLeast := 20 * (1 + 10*i)
		streamtest.Eventually(t, 30*time.Second, "it goes on", func() (bool, string) {
			n := w.count("acked")
			return n >= atLeast, fmt.Sprint(n, " acked")
		})
		server.Stop()
		server.Start()
	}
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(60 * time.Second):
		t.Fatal("Publish does not return with NATS back")
	}
	wantInOrder(t, all, w.first(t, w.alerts, len(all)))
}

func TestPublishEndsWithItsContext(t *testing.T) {
	server := streamtest.OwnNATS(t)
	w := newWorld(t, connect(t, server.URL()))
	server.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.publisher.Publish(ctx, history(1, 2)) }()
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
