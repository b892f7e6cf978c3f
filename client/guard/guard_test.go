package guard_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/guard"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// With the rights of a subscriber in deploy/nats-permissions.conf and no more: the
// snapshot of its rules, changes, an end, a clean stop. A rule may be named twice, and that of blocks too.
func TestGuardUnderTheShippedPermissions(t *testing.T) {
	server := streamtest.NewSecuredNATS(t)
	r := newRelay(t, streamtest.ConnectNATS(t, server.As("relay"), nats.CustomInboxPrefix("_INBOX.relay")), "sc")
	now := time.Now()
	r.publish(
		throttle("api", "user:1", now), throttle("api", "odd key / *", now), throttle("other", "user:3", now),
		throttle("api", "user:4", now, func(d *api.Transition) { d.Shadow = true }),
		throttle("api", "user:5", now.Add(-2*time.Hour)), // has expired
	)
	before := goleak.IgnoreCurrent()
	nc := streamtest.ConnectNATS(t, server.As("subscriber"), nats.CustomInboxPrefix("_INBOX.subscriber"))
	g, stop := runGuard(t, nc, guard.Config{Rules: []string{"api", "web", "api", "override"}})
	awaitReady(t, g)
	if d, ok := g.Lookup("user:1"); !ok || d != throttle("api", "user:1", now) {
		t.Errorf("Lookup gives %+v, %t", d, ok)
	}
	var keys []string
	for d := range g.All() {
		keys = append(keys, d.Key)
	}
	// All leaves out three decisions: one has another rule, one has a shadow rule, and one has expired.
	if slices.Sort(keys); !slices.Equal(keys, []string{"odd key / *", "user:1"}) || !g.Throttled("odd key / *") {
		t.Errorf("All gives %q", keys)
	}
	r.publish(throttle("api", "user:2", now), release("api", "user:1", now.Add(time.Second)))
	awaitThrottled(t, g, "user:2", true)
	awaitThrottled(t, g, "user:1", false)
	streamtest.Eventually(t, "what has expired is removed", func() (bool, string) {
		return g.Stats().Held == 4, fmt.Sprint(g.Stats())
	})
	stop()
	if list := server.Violations(); len(list) > 0 {
		t.Errorf("the guard wanted more than it may: %v", list)
	}
	nc.Close()
	// Goroutines that the library leaves of a connection and of requests end later.
	goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction(
		"github.com/nats-io/nats-server/v2/server.(*Server).startGoRoutine.func1"))
}

// Somebody has a message stored in place of a decision, such as an answer of JetStream.
// The guard keeps the decision and asks for a new snapshot; it believes a snapshot
// that has no such message again.
func TestGuardAsksAgainAfterAMalformedMessage(t *testing.T) {
	t.Parallel()
	direct := streamtest.ConnectNATS(t, streamtest.NATS(t))
	r := newRelay(t, direct, streamtest.Prefix(t))
	now := time.Now()
	r.publish(throttle("api", "user:1", now), throttle("api", "user:2", now))
	g, _ := runGuard(t, streamtest.ConnectNATS(t, streamtest.NATS(t)), guard.Config{Prefix: r.prefix})
	awaitReady(t, g)
	snapshots := func(n int64) {
		t.Helper()
		want := g.Stats().Snapshots + n
		streamtest.Eventually(t, "new snapshots", func() (bool, string) {
			return g.Stats().Snapshots >= want, fmt.Sprint(g.Stats().Snapshots)
		})
	}
	subject := api.ThrottleSubject(r.prefix, "api", "user:1")
	_, err := r.js.Publish(t.Context(), subject, []byte(`{"type":"io.nats.jetstream.api.v1.account_info_response"}`))
	testkit.Must(t, err)
	snapshots(2) // the message is in the first of them
	if !g.Throttled("user:1") || !g.Throttled("user:2") {
		t.Error("a key was let go because a malformed message stands in place of its decision")
	}
	s, err := r.js.Stream(t.Context(), r.stream())
	testkit.Must(t, err)
	testkit.Must(t, s.Purge(t.Context(), jetstream.WithPurgeSubject(subject)))
	awaitThrottled(t, g, "user:1", false) // as in a snapshot of decisions alone
	if !g.Throttled("user:2") {
		t.Error("user:2 was let go, but it is in the snapshot")
	}
}

// NATS restarts, the connection leads nowhere (nothing reports that, but the silence shows it), and the stream is
// deleted and created again, with the guard's consumer: the guard keeps its decisions, and subscribes again. What is
// not in the next snapshot is released, because its end was published and gone while the guard was away.
func TestGuardSurvivesOutages(t *testing.T) {
	t.Parallel()
	server := streamtest.OwnNATS(t)
	r := newRelay(t, streamtest.ConnectNATS(t, server.URL()), streamtest.Prefix(t))
	way := streamtest.NewProxy(t, strings.TrimPrefix(server.URL(), "nats://"))
	nc := streamtest.ConnectNATS(t, "nats://"+way.Addr)
	g, _ := runGuard(t, nc, guard.Config{Prefix: r.prefix}) // the stream does not exist yet
	now := time.Now()
	r.publish(throttle("api", "user:1", now), throttle("api", "gone", now))
	awaitThrottled(t, g, "gone", true)
	for _, outage := range []struct {
		key        string
		begin, end func()
	}{{"restarted", server.Stop, server.Start}, {"nowhere", way.Blackhole, way.Heal}} {
		outage.begin()
		streamtest.Eventually(t, "the guard becomes stale", func() (bool, string) {
			return g.Staleness() > 3*time.Second, g.Staleness().String()
		})
		if outage.key == "nowhere" {
			s, err := r.js.Stream(t.Context(), r.stream())
			testkit.Must(t, err)
			gone := api.ThrottleSubject(r.prefix, "api", "gone")
			testkit.Must(t, s.Purge(t.Context(), jetstream.WithPurgeSubject(gone)))
		}
		if !g.Throttled("user:1") || !g.Throttled("gone") {
			t.Errorf("%s: a key was let go because NATS was away", outage.key)
		}
		outage.end()
		r.publish(throttle("api", outage.key, now))
		awaitThrottled(t, g, outage.key, true)
		if got := g.Staleness(); got > 3*time.Second {
			t.Errorf("%s: stale for %s right after a message", outage.key, got)
		}
	}
	awaitThrottled(t, g, "gone", false)
	if !g.Throttled("user:1") {
		t.Error("user:1 was let go, but it is in the snapshot")
	}
	testkit.Must(t, r.js.DeleteStream(t.Context(), r.stream()))
	r.publish(throttle("api", "user:2", now))
	awaitThrottled(t, g, "user:2", true)
	awaitThrottled(t, g, "user:1", false)
}

// A callback that hangs does not hold up the guard, and the changes that it misses are counted.
func TestOnChangeHoldsUpNothing(t *testing.T) {
	t.Parallel()
	nc := streamtest.ConnectNATS(t, streamtest.NATS(t))
	r := newRelay(t, nc, streamtest.Prefix(t))
	hang, called := make(chan struct{}), make(chan string, 100)
	var once sync.Once
	g, _ := runGuard(t, nc, guard.Config{Prefix: r.prefix, ChangeQueue: 2, OnChange: func(c guard.Change) {
		called <- c.Key
		once.Do(func() { <-hang })
	}})
	now := time.Now()
	r.publish(throttle("api", "user:0", now))
	if key := <-called; key != "user:0" {
		t.Errorf("told of %s", key)
	}
	for i := range 5 {
		r.publish(throttle("api", fmt.Sprint("more:", i), now))
	}
	awaitThrottled(t, g, "more:4", true)
	if n := g.Stats().ChangesDropped; n != 3 {
		t.Errorf("%d changes were left out, want 3 of 5 with room for 2", n)
	}
	close(hang)
	for _, want := range []string{"more:0", "more:1"} {
		if key := <-called; key != want {
			t.Errorf("told of %s, want %s", key, want)
		}
	}
}

func TestGuardIsStoppedByTheEndOfItsConnection(t *testing.T) {
	nc := streamtest.ConnectNATS(t, streamtest.NATS(t))
	g, err := guard.New(nc, guard.Config{Prefix: streamtest.Prefix(t), Log: quiet})
	testkit.Must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- g.Run(context.Background()) }()
	nc.Close()
	if err := <-ended; err == nil {
		t.Error("Run ended without an error, but nothing will ever be heard again")
	}
	if err := g.Run(t.Context()); err == nil {
		t.Error("Run ran twice")
	}
}

func TestGuardRefusesWhatCannotBeASubject(t *testing.T) {
	for _, c := range []guard.Config{{Prefix: "a.b"}, {Rules: []string{"api", "*"}}, {Rules: []string{""}},
		{MaxKeys: -1}} {
		if _, err := guard.New(&nats.Conn{}, c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	if _, err := guard.New(nil, guard.Config{}); err == nil {
		t.Error("no connection was taken")
	}
}

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
