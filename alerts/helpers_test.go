package alerts_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// world is one prefix on a NATS server: its publisher, and the outcome of each publish.
type world struct {
	prefix           string
	js               jetstream.JetStream
	publisher        *alerts.Publisher
	throttle, alerts string // names of the streams

	mu       sync.Mutex
	outcomes map[string]int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOf(t, sharedNATS(t), alerts.PublisherConfig{})
}

func sharedNATS(t *testing.T) *nats.Conn { return streamtest.ConnectNATS(t, streamtest.NATS(t)) }

func newWorldOf(t *testing.T, nc *nats.Conn, config alerts.PublisherConfig) *world {
	t.Helper()
	js, err := jetstream.New(nc)
	testkit.Must(t, err)
	w := &world{prefix: streamtest.Prefix(t), js: js, outcomes: map[string]int{}}
	w.throttle, w.alerts = alerts.StreamNames(w.prefix)
	config.Prefix, config.AckTimeout = w.prefix, 500*time.Millisecond
	config.Log = cmp.Or(config.Log, slog.New(slog.DiscardHandler))
	config.OnOutcome = func(outcome string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.outcomes[outcome]++
	}
	w.publisher, err = alerts.NewPublisher(nc, config)
	testkit.Must(t, err)
	return w
}

// ensure creates the streams.
func (w *world) ensure(t *testing.T) {
	t.Helper()
	streamtest.Succeeds(t, "there are streams", func() error { return w.publisher.Ensure(t.Context()) })
}

func (w *world) count(outcome string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.outcomes[outcome]
}

// first returns the first n messages of a stream, one word per message, and fails if they do not come.
func (w *world) first(t *testing.T, streamName string, n int) (got []string) {
	t.Helper()
	var consumer jetstream.Consumer
	streamtest.Succeeds(t, "there is a consumer", func() (err error) {
		consumer, err = w.js.OrderedConsumer(t.Context(), streamName, jetstream.OrderedConsumerConfig{})
		return err
	})
	heard := make(chan string, 10_000)
	following, err := consumer.Consume(func(m jetstream.Msg) {
		var tr api.Transition
		if err := json.Unmarshal(m.Data(), &tr); err != nil {
			t.Error(err)
		}
		heard <- word(tr)
	})
	testkit.Must(t, err)
	defer following.Stop()
	late := time.After(time.Minute)
	for range n {
		select {
		case w := <-heard:
			got = append(got, w)
		case <-late:
			t.Fatalf("%d of %d messages came: %q", len(got), n, got)
		}
	}
	return got
}

func word(t api.Transition) string { return fmt.Sprintf("%s %s@%d", t.Key, t.State, t.SinceMs) }

func throttle(key string, state api.State, since int64) api.Transition {
	return api.Transition{
		Rule: "api", Key: key, State: state, Level: 100, Limit: 10, WindowMs: 60_000, Used: 10,
		// A decision that has expired is removed from the stream, an hour after it was stored.
		Version: since, AtMs: since, SinceMs: since, UntilMs: since + 60_000, ExpiresMs: since + 3_600_000,
	}
}

func alert(key string, state api.State, since int64) api.Transition {
	t := throttle(key, state, since)
	t.Level = 80
	return t
}
