package alerts_test

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
)

// Every guard would take a stored message that is no decision for a gap, and ask for new snapshots.
func TestWhatIsNoTransitionIsNotPublished(t *testing.T) {
	w, good := newWorld(t), throttle("a", api.StateThrottled, 1000)
	for name, change := range map[string]func(*api.Transition){
		"no key":     func(t *api.Transition) { t.Key = "" },
		"version 0":  func(t *api.Transition) { t.Version = 0 },
		"rule":       func(t *api.Transition) { t.Rule = "a.b" },
		"level":      func(t *api.Transition) { t.Level = 80 },
		"never ends": func(t *api.Transition) { t.ExpiresMs = 1 << 60 },
	} {
		bad := good
		change(&bad)
		err := w.publisher.Publish(t.Context(), []api.Transition{good, bad}, 0)
		if !errors.Is(err, api.ErrBadTransition) {
			t.Errorf("%s: %v, want a bad transition", name, err)
		}
	}
	if _, err := w.js.Stream(t.Context(), w.throttle); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("something was published: %v", err)
	}
}

// A prefix is one token of a subject.
func TestBadPrefixes(t *testing.T) {
	nc := sharedNATS(t)
	for _, prefix := range []string{"", "a.b", "sc>", "bad prefix", "*", "a\n"} {
		if _, err := alerts.NewPublisher(nc, alerts.PublisherConfig{Prefix: prefix}); err == nil {
			t.Errorf("NewPublisher takes the prefix %q", prefix)
		}
		if _, err := alerts.NewHistory(nc, prefix); err == nil {
			t.Errorf("NewHistory takes the prefix %q", prefix)
		}
	}
	if _, err := alerts.NewPublisher(nil, alerts.PublisherConfig{Prefix: "sc"}); err == nil {
		t.Error("NewPublisher takes no connection")
	}
	if _, err := alerts.NewHistory(nil, "sc"); err == nil {
		t.Error("NewHistory takes no connection")
	}
}
