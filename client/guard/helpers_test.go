package guard_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/guard"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// patience is how long a test waits for what must come. Nothing should take that long.
const patience = time.Minute

var quiet = slog.New(slog.DiscardHandler)

// relay publishes decisions as `work` does.
type relay struct {
	t         testing.TB
	prefix    string
	js        jetstream.JetStream
	publisher *alerts.Publisher
}

func newRelay(t testing.TB, nc *nats.Conn, prefix string) *relay {
	t.Helper()
	js, err := jetstream.New(nc)
	testkit.Must(t, err)
	p, err := alerts.NewPublisher(nc, alerts.PublisherConfig{Prefix: prefix, AckTimeout: 500 * time.Millisecond,
		Log: quiet})
	testkit.Must(t, err)
	return &relay{t, prefix, js, p}
}

func (r *relay) stream() string {
	throttle, _ := alerts.StreamNames(r.prefix)
	return throttle
}

func (r *relay) publish(list ...api.Transition) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	testkit.Must(r.t, r.publisher.Publish(ctx, list, 0))
}

// throttle returns a decision made at `at` that is in effect for an hour; change may change it.
func throttle(rule, key string, at time.Time, change ...func(*api.Transition)) api.Transition {
	ms := at.UnixMilli()
	t := api.Transition{
		Rule: rule, Key: key, State: api.StateThrottled, Level: api.LevelThrottled, Limit: 100, WindowMs: 60_000,
		Used:    120,
		Version: ms, AtMs: ms, SinceMs: ms, UntilMs: ms + 3_590_000, ExpiresMs: ms + 3_600_000,
	}
	for _, c := range change {
		c(&t)
	}
	return t
}

func release(rule, key string, at time.Time) api.Transition {
	return throttle(rule, key, at, func(t *api.Transition) {
		t.State, t.UntilMs, t.Used = api.StateReleased, at.UnixMilli(), 10
	})
}

// runGuard runs a guard until the test ends, or stop is called.
func runGuard(t testing.TB, nc *nats.Conn, c guard.Config) (g *guard.Guard, stop func()) {
	t.Helper()
	c.Log = quiet
	g, err := guard.New(nc, c)
	testkit.Must(t, err)
	return g, testkit.Run(t, func(ctx context.Context) {
		if err := g.Run(ctx); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			t.Errorf("Run: %v", err)
		}
	})
}

func awaitReady(t testing.TB, g *guard.Guard) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	testkit.Must(t, g.Ready(ctx))
}

// awaitThrottled waits until the guard says so of a key.
func awaitThrottled(t testing.TB, g *guard.Guard, key string, want bool) {
	t.Helper()
	streamtest.Eventually(t, "key "+key, func() (bool, string) {
		got := g.Throttled(key)
		return got == want, map[bool]string{true: "throttled", false: "free"}[got]
	})
}
