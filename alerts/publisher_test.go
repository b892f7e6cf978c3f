package alerts_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// history returns `rounds` alerts of each key, in order for each key, with the keys mixed.
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

// wantInOrder compares what is stored of each key with the alerts that were published.
func (w *world) wantInOrder(t *testing.T, published []api.Transition) {
	t.Helper()
	want, got := map[string][]string{}, map[string][]string{}
	for _, tr := range published {
		want[tr.Key] = append(want[tr.Key], word(tr))
	}
	for _, word := range w.first(t, w.alerts, len(published)) {
		key, _, _ := strings.Cut(word, " ")
		got[key] = append(got[key], word)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("of each key (-published +came):\n%s", diff)
	}
	s, err := w.js.Stream(t.Context(), w.alerts)
	testkit.Must(t, err)
	if n := s.CachedInfo().State.Msgs; n != uint64(len(published)) {
		t.Errorf("%d alerts are stored, want %d", n, len(published))
	}
}

// No stream exists at first: the first publish creates them, and so does a publish after somebody deleted them. The
// order of each subject is kept throughout.
func TestPublishMakesTheStreamsAndKeepsTheOrder(t *testing.T) {
	w := newWorld(t)
	for range 2 {
		all := history(7, 9)
		testkit.Must(t, w.publisher.Publish(t.Context(), append(all, throttle("user:1", api.StateThrottled, 1)), 0))
		w.wantInOrder(t, all)
		testkit.Must(t, w.js.DeleteStream(t.Context(), w.alerts))
		testkit.Must(t, w.js.DeleteStream(t.Context(), w.throttle))
	}
	if n := w.count("acked"); n != 2*64 {
		t.Errorf("%d publishes had their ack, want %d", n, 2*64)
	}
}

// A message that is published again, as after an unknown outcome, is stored once. A renewal differs only in `until`,
// and is not a copy.
func TestPublishAgain(t *testing.T) {
	w := newWorld(t)
	first := alert("a", api.StateRaised, 1000)
	again := first
	again.AtMs, again.Used, again.UntilMs = 2000, 99, 3000 // as another script would write it
	for i := range 2 {
		testkit.Must(t, w.publisher.Publish(t.Context(), []api.Transition{first, again,
			alert("a", api.StateCleared, 2000)},
			3*i))
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
	testkit.Must(t, w.publisher.Publish(t.Context(), []api.Transition{decision, renewal, later, later}, 0))
	if acked, copies := w.count("acked"), w.count("duplicate"); acked != 5 || copies != 5 {
		t.Errorf("%d stored and %d dropped as copies, want 5 and 5", acked, copies)
	}
}

// JetStream knows the ID of a transition although it is sent for the first time. It was taken for a copy of another
// message, so nobody receives it: this is counted and logged.
func TestAnUnexpectedDuplicate(t *testing.T) {
	var logged bytes.Buffer
	w := newWorldOf(t, sharedNATS(t), alerts.PublisherConfig{Log: slog.New(slog.NewTextHandler(&logged, nil))})
	a, b, c := alert("a", api.StateRaised, 1000), alert("b", api.StateRaised, 1000), alert("c", api.StateRaised, 1000)
	testkit.Must(t, w.publisher.Publish(t.Context(), []api.Transition{a, b}, 0))
	// The relay has sent only the first one before.
	testkit.Must(t, w.publisher.Publish(t.Context(), []api.Transition{a, b, c}, 1))
	for outcome, want := range map[string]int{"acked": 3, "duplicate": 1, "unexpected_duplicate": 1} {
		if got := w.count(outcome); got != want {
			t.Errorf("%d publishes were %s, want %d", got, outcome, want)
		}
	}
	if id := b.MessageID(w.prefix); strings.Count(logged.String(), "level=ERROR") != 1 ||
		!strings.Contains(logged.String(), id) {
		t.Errorf("the log does not name %s: %s", id, logged.String())
	}
}

// lease is a context that ends after its Err has been called a number of times: a process that was frozen finds that
// its lease has ended in the middle of its work.
type lease struct {
	context.Context
	left int
}

func (l *lease) Err() error {
	if l.left == 0 {
		return context.Canceled
	}
	l.left--
	return nil
}

// A relay that was frozen goes on after another relay has got its lease and has sent the same messages. If the lease
// ended before the send, it sends nothing. If the lease ended during the send, JetStream drops the copy, because the
// other relay sent the message before.
func TestARelayThatWasFrozen(t *testing.T) {
	var logged bytes.Buffer
	w := newWorldOf(t, sharedNATS(t), alerts.PublisherConfig{Log: slog.New(slog.NewTextHandler(&logged, nil))})
	a, b := alert("a", api.StateRaised, 1000), alert("b", api.StateRaised, 1000)
	testkit.Must(t, w.publisher.Publish(t.Context(), []api.Transition{a}, 0)) // by the other
	if err := w.publisher.Publish(&lease{t.Context(), 0}, []api.Transition{a, b}, 0); !errors.Is(err,
		context.Canceled) {
		t.Errorf("after the lease: %v", err)
	}
	if n := w.count("acked") + w.count("duplicate") + w.count("unexpected_duplicate"); n != 1 {
		t.Errorf("%d messages were sent, expected the one of the other", n)
	}
	testkit.Must(t, w.publisher.Publish(&lease{t.Context(), 1}, []api.Transition{a}, 0))
	if n, copies := w.count("unexpected_duplicate"), w.count("duplicate"); n != 0 || copies != 1 {
		t.Errorf("%d unexpected duplicates and %d others, expected 0 and 1\n%s", n, copies, logged.String())
	}
}

// Somebody subscribes without JetStream before the streams exist. NATS then has a receiver for the messages, and does
// not report that no stream stores them.
func TestStreamsAreMadeUnderASubscriber(t *testing.T) {
	w := newWorld(t)
	_, err := w.js.Conn().SubscribeSync(w.prefix + ".>")
	testkit.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	testkit.Must(t, w.publisher.Publish(ctx, []api.Transition{alert("a", api.StateRaised, 1000)}, 0))
}
