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
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
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
