package streamtest

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

func jetStream(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	testkit.Must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	testkit.Must(t, err)
	return js
}

func TestNATS(t *testing.T) {
	js, prefix := jetStream(t, NATS(t)), Prefix(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: prefix, Subjects: []string{prefix + ".>"},
		AllowMsgTTL: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), prefix+".a", []byte("1")); err != nil {
		t.Error(err)
	}
}

func TestOwnNATS(t *testing.T) {
	n := OwnNATS(t)
	url := n.URL()
	if _, err := jetStream(t, url).CreateStream(t.Context(),
		jetstream.StreamConfig{Name: "kept", Subjects: []string{"kept"}}); err != nil {
		t.Fatal(err)
	}
	n.Stop()
	if _, err := nats.Connect(url); err == nil {
		t.Error("stopped: it still answers")
	}
	n.Start()
	if n.URL() != url {
		t.Errorf("its URL was %s and is %s", url, n.URL())
	}
	if _, err := jetStream(t, url).Stream(t.Context(), "kept"); err != nil {
		t.Errorf("the stream is gone after a restart: %v", err)
	}
}
