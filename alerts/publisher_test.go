package alerts_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/streamtest"
)

// history is `rounds` alerts of each key, in order of each key, mixed.
func history(keys, rounds int) []api.Transition {
	var all []api.Transition
	for i := range rounds {
		for k := range keys {
			state := api.StateRaised
			if i%2 == 1 {
				state = api.StateCleared
			}
			all = append(all, alert(fmt.Sprintf("user:%d", k), state, int64(1000+i)))
		}
	}
	return all
}

// wantInOrder holds what came of each key against what was published.
func wantInOrder(t *testing.T, published []api.Transition, got []string) {
	t.Helper()
	want := map[string][]string{}
	for _, tr := range published {
		want[tr.Key] = append(want[tr.Key], word(tr))
	}
	for key, list := range want {
		if diff := cmp.Diff(list, ofKey(got, key)); diff != "" {
			t.Errorf("%s (-published +came):\n%s", key, diff)
		}
	}
}

func TestNewPublisherNeedsAPrefix(t *testing.T) {
	if _, err := alerts.NewPublisher(connect(t, streamtest.NATS(t)), alerts.PublisherConfig{}); err == nil {
		t.Error("no prefix was taken")
	}
}

// No stream is there at first: the first publish makes them, and so does one
// after somebody deleted them. The order of each subject is kept throughout.
func TestPublishMakesTheStreamsAndKeepsTheOrder(t *testing.T) {
	w := newWorld(t, connect(t, streamtest.NATS(t)))
	for range 2 {
		all := history(7, 9)
		must(t, w.publisher.Publish(t.Context(), append(all, throttle("user:1", api.StateThrottled, 1))))
		got := w.first(t, w.alerts, len(all))
		wantInOrder(t, all, got)
		must(t, w.js.DeleteStream(t.Context(), w.alerts))
		must(t, w.js.DeleteStream(t.Context(), w.throttle))
	}
	if n := w.count("acked"); n != 2*64 {
		t.Errorf("%d publishes had their ack, want %d", n, 2*64)
	}
}

func TestPublishNothing(t *testing.T) {
	w := newWorld(t, connect(t, streamtest.NATS(t)))
	must(t, w.publisher.Publish(t.Context(), nil))
}

// A subscriber that comes later gets who is throttled now, each once, and then
// what changes.
func TestSnapshotThenChanges(t *testing.T) {
	w := newWorld(t, connect(t, streamtest.NATS(t)))
	ctx := t.Context()
	must(t, w.publisher.Publish(ctx, []api.Transition{
		throttle("a", api.StateThrottled, 1), throttle("b", api.StateThrottled, 2), throttle("a", api.StateReleased, 3),
		throttle("c.d", api.StateThrottled, 4), throttle("a", api.StateThrottled, 5), throttle("b", api.StateReleased, 6),
	}))
	heard, stop := w.follow(t, w.throttle, jetstream.DeliverLastPerSubjectPolicy)
	defer stop()
	snapshot := next(t, heard, 3)
	slices.Sort(snapshot)
	if diff := cmp.Diff([]string{"a throttled@5", "b released@6", "c.d throttled@4"}, snapshot); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
	// One after the other: who is slower than the changes gets only the last.
	for i, state := range []api.State{api.StateReleased, api.StateThrottled} {
		change := throttle("c.d", state, int64(7+i))
		must(t, w.publisher.Publish(ctx, []api.Transition{change}))
		if diff := cmp.Diff([]string{word(change)}, next(t, heard, 1)); diff != "" {
			t.Errorf("change (-want +got):\n%s", diff)
		}
	}
}

// What is published again, as after an unknown outcome, is stored once. A
// renewal differs in `until` alone, and is no copy.
func TestPublishAgain(t *testing.T) {
	w := newWorld(t, connect(t, streamtest.NATS(t)))
	first := alert("a", api.StateRaised, 1000)
	again := first
	again.AtMs, again.Used, again.UntilMs = 2000, 99, 3000 // as another script would write it
	for range 2 {
		must(t, w.publisher.Publish(t.Context(), []api.Transition{first, again, alert("a", api.StateCleared, 2000)}))
	}
	got := w.first(t, w.alerts, 2)
	if diff := cmp.Diff([]string{"a raised@1000", "a cleared@2000"}, got); diff != "" {
		t.Errorf("alerts (-want +got):\n%s", diff)
	}
	if acked, copies := w.count("acked"), w.count("duplicate"); acked != 2 || copies != 4 {
		t.Errorf("%d stored and %d dropped as copies, want 2 and 4", acked, copies)
	}

	decision := throttle("a", api.StateThrottled, 1000)
	renewal := decision
	renewal.Renewal, renewal.UntilMs = true, decision.UntilMs+1000
	later := renewal
	later.UntilMs += 1000
	must(t, w.publisher.Publish(t.Context(), []api.Transition{decision, renewal, later, later}))
	if acked, copies := w.count("acked"), w.count("duplicate"); acked != 5 || copies != 5 {
		t.Errorf("%d stored and %d dropped as copies, want 5 and 5", acked, copies)
	}
}

func TestThrottleDecisionExpires(t *testing.T) {
	w := newWorld(t, connect(t, streamtest.NATS(t)))
	short, long := throttle("short", api.StateThrottled, 1000), throttle("long", api.StateThrottled, 1000)
	short.ExpiresMs = short.AtMs + 900 // JetStream's least is a second
	must(t, w.publisher.Publish(t.Context(), []api.Transition{short, long}))
	s, err := w.js.Stream(t.Context(), w.throttle)
	must(t, err)
	if _, err := s.GetLastMsgForSubject(t.Context(), short.Subject(w.prefix)); err != nil {
		t.Errorf("before its time: %v", err)
	}
	streamtest.Eventually(t, 20*time.Second, "the decision is gone", func() (bool, string) {
		_, err := s.GetLastMsgForSubject(t.Context(), short.Subject(w.prefix))
		return errors.Is(err, jetstream.ErrMsgNotFound), fmt.Sprint(err)
	})
	if _, err := s.GetLastMsgForSubject(t.Context(), long.Subject(w.prefix)); err != nil {
		t.Errorf("the other one: %v", err)
	}
}

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
	for times[b2.MessageID(w.prefix)] == 0 || times[a2.MessageID(w.prefix)] == 0 {
		m := <-heard
		id := m.Header.Get("Nats-Msg-Id")
		times[id]++
		if id == a1.MessageID(w.prefix) && times[id] < 3 {
			continue // no ack
		}
		if id == a2.MessageID(w.prefix) && times[a1.MessageID(w.prefix)] < 3 {
			t.Error("the second message came before the first had its ack")
		}
		must(t, m.Respond([]byte(`{"stream":"TEST","seq":1}`)))
	}
	must(t, <-done)
	if n := w.count("acked"); n != 4 {
		t.Errorf("%d had their ack, want 4", n)
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
	before := nc.Stats().OutMsgs
	done := make(chan error, 1)
	go func() { done <- w.publisher.Publish(t.Context(), all[3:]) }() // three of them again
	streamtest.Eventually(t, 20*time.Second, "three tries fail", func() (bool, string) {
		n := w.count("failed")
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
