package alerts_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func configOf(t *testing.T, js jetstream.JetStream, name string) jetstream.StreamConfig {
	t.Helper()
	s, err := js.Stream(t.Context(), name)
	testkit.Must(t, err)
	return s.CachedInfo().Config
}

func TestEnsureStreams(t *testing.T) {
	w := newWorld(t)
	for range 2 { // the second call finds them unchanged
		differences, err := alerts.EnsureStreams(t.Context(), w.js, alerts.Streams(w.prefix, 1))
		testkit.Must(t, err)
		if len(differences) > 0 {
			t.Errorf("differences %q, want none", differences)
		}
	}
	c := configOf(t, w.js, w.throttle)
	if len(c.Subjects) != 1 || c.Subjects[0] != w.prefix+".throttle.>" || c.MaxMsgsPerSubject != 1 ||
		!c.AllowMsgTTL || c.Storage != jetstream.FileStorage || c.MaxAge != 0 {
		t.Errorf("throttle stream: %+v", c)
	}
	c = configOf(t, w.js, w.alerts)
	if len(c.Subjects) != 1 || c.Subjects[0] != w.prefix+".alert.>" || c.Retention != jetstream.LimitsPolicy ||
		c.MaxAge != 7*24*time.Hour ||
		c.MaxMsgsPerSubject > 0 || c.Storage != jetstream.FileStorage {
		t.Errorf("alerts stream: %+v", c)
	}
}

// An operator's own settings stay, and the differences are returned.
func TestEnsureStreamsAltersNothing(t *testing.T) {
	w := newWorld(t)
	theirs := jetstream.StreamConfig{Name: w.alerts, Subjects: []string{w.prefix + ".alert.>"}, MaxAge: time.Hour,
		MaxMsgsPerSubject: 5, Duplicates: time.Minute}
	_, err := w.js.CreateStream(t.Context(), theirs)
	testkit.Must(t, err)
	before := configOf(t, w.js, w.alerts)
	differences, err := alerts.EnsureStreams(t.Context(), w.js, alerts.Streams(w.prefix, 1))
	testkit.Must(t, err)
	said := strings.Join(differences, "\n")
	for _, part := range []string{"max_age 1h0m0s, expected 168h0m0s", "max_msgs_per_subject 5, expected 0",
		"duplicate_window 1m0s, expected 2m0s"} {
		if !strings.Contains(said, "stream "+w.alerts+" has "+part) {
			t.Errorf("differences:\n%s\nwant %q among them", said, part)
		}
	}
	if len(differences) != 3 {
		t.Errorf("differences:\n%s\nwant 3", said)
	}
	if after := configOf(t, w.js, w.alerts); after.MaxAge != before.MaxAge || after.MaxMsgsPerSubject != 5 ||
		after.Duplicates != time.Minute {
		t.Errorf("the stream was %+v and is %+v", before, after)
	}
	configOf(t, w.js, w.throttle) // the other one was made all the same
}

// A stream of another name has the subjects: the error says which stream could not be created.
func TestEnsureStreamsWhereTheSubjectsAreTaken(t *testing.T) {
	w := newWorld(t)
	other := strings.ToUpper(w.prefix) + "_MINE"
	_, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: other, Subjects: []string{w.prefix + ".>"}})
	testkit.Must(t, err)
	if _, err = alerts.EnsureStreams(t.Context(), w.js, alerts.Streams(w.prefix, 1)); err == nil ||
		!strings.Contains(err.Error(), w.throttle) {
		t.Errorf("error %v, want one that names %s", err, w.throttle)
	}
}

// A stream with more replicas than this process would give it is right, one with fewer is not.
func TestReplicas(t *testing.T) {
	for have, want := range map[int]int{1: 1, 2: 0, 3: 0} {
		stored := alerts.Streams("sc", have)[0]
		if got := alerts.Differences(alerts.Streams("sc", 2)[0], stored); len(got) != want {
			t.Errorf("%d replicas: %v", have, got)
		}
	}
}
