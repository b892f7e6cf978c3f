package alerts_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
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
	if diff := gocmp.Diff(want, got); diff != "" {
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
	if diff := gocmp.Diff([]string{"a raised@1000", "a cleared@2000"}, got); diff != "" {
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

// A server does not answer the first publish. The second message of that subject, or the next alert of that key, must
// not overtake it, and the message that is sent again keeps its ID.
func TestNothingOvertakesAnUnansweredPublish(t *testing.T) {
	alerts80, alerts95 := alert("k", api.StateRaised, 1), alert("k", api.StateRaised, 2)
	alerts95.Level = 95
	for what, list := range map[string][]api.Transition{
		"throttle": {throttle("k", api.StateThrottled, 1000), throttle("k", api.StateReleased, 2000)},
		"alert":    {alerts80, alerts95},
	} {
		nc := streamtest.ConnectNATS(t, streamtest.NATS(t))
		prefix := streamtest.Prefix(t)
		heard, n := make(chan string, 10), 0
		_, err := nc.Subscribe(prefix+"."+what+".>", func(m *nats.Msg) {
			heard <- m.Header.Get(nats.MsgIdHdr)
			if n++; n > 1 { // one goroutine calls it
				_ = m.Respond(fmt.Appendf(nil, `{"stream":"X","seq":%d}`, n))
			}
		})
		testkit.Must(t, err)
		p, err := alerts.NewPublisher(nc, alerts.PublisherConfig{Prefix: prefix, AckTimeout: time.Second,
			Log: slog.New(slog.DiscardHandler)})
		testkit.Must(t, err)
		testkit.Must(t, p.Publish(t.Context(), list, 0))
		// The publisher has created the streams meanwhile, and that answer may come first.
		seen := []string{<-heard, <-heard, <-heard}
		first, second := list[0].MessageID(prefix), list[1].MessageID(prefix)
		if want := []string{first, first, second}; !slices.Equal(seen, want) {
			t.Fatalf("%s: published %v, expected %v", what, seen, want)
		}
		testkit.Must(t, nc.Flush())
		if len(heard) != 0 {
			t.Errorf("%s: and then %s", what, <-heard)
		}
	}
}

// Alerts of one key are in the stream in the order in which they were written, whatever their levels: alerts of one
// subject wait for each other, and alerts of another subject of the key wait with them.
func TestAlertsOfAKeyKeepTheirOrder(t *testing.T) {
	w := newWorld(t)
	var list []api.Transition
	var want []string
	for i := range int64(40) {
		a := alert("user:1", []api.State{api.StateRaised, api.StateCleared}[i/2%2], i+1)
		if i%4 == 3 {
			a.Level = 95
		}
		list, want = append(list, a), append(want, word(a))
	}
	testkit.Must(t, w.publisher.Publish(t.Context(), list, 0))
	if got := w.first(t, w.alerts, len(want)); !slices.Equal(got, want) {
		t.Errorf("the stream has\n%v\nwant\n%v", got, want)
	}
}

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

// NATS is down when the relay publishes: it waits, and later every transition is there, in the order of each subject,
// and none twice.
func TestPublishThroughAnOutage(t *testing.T) {
	server := streamtest.OwnNATS(t)
	nc := streamtest.ConnectNATS(t, server.URL())
	w := newWorldOf(t, nc, alerts.PublisherConfig{})
	all := history(3, 6)
	testkit.Must(t, w.publisher.Publish(t.Context(), all[:6], 0))
	server.Stop()
	streamtest.Eventually(t, "the connection is lost",
		func() (bool, string) { return !nc.IsConnected(), nc.Status().String() })
	before, failed := nc.Stats().OutMsgs, w.count("failed")
	done := make(chan error, 1)
	go func() { done <- w.publisher.Publish(t.Context(), all[3:], 3) }() // three of them again
	streamtest.Eventually(t, "three tries fail", func() (bool, string) {
		n := w.count("failed") - failed
		return n >= 3, fmt.Sprint(n, " failed")
	})
	if n := nc.Stats().OutMsgs - before; n != 0 {
		t.Errorf("%d messages were left with the library, which would send each as often as it was tried", n)
	}
	server.Start()
	select {
	case err := <-done:
		testkit.Must(t, err)
	case <-time.After(time.Minute):
		t.Fatal("Publish does not return with NATS back")
	}
	w.wantInOrder(t, all)
}

// absence is how long NATS is down: STREAMCOUNTER_TEST_OUTAGE, or 2s.
func absence(t *testing.T) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(cmp.Or(os.Getenv("STREAMCOUNTER_TEST_OUTAGE"), "2s"))
	testkit.Must(t, err)
	return d
}

// A cluster of three and as many replicas, in which servers end and start again. The streams then have every
// transition once, in the order of each key. (A test of package consumers covers the outbox.)
func TestPublishThroughAnOutageOfACluster(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(c *streamtest.NATSCluster, stream string, more func()){
		"the stream's leader is killed": func(c *streamtest.NATSCluster, stream string, more func()) {
			leader := c.LeaderOf(stream)
			c.Kill(leader)
			more()
			c.Start(leader)
		},
		"two of three are killed": func(c *streamtest.NATSCluster, _ string, _ func()) {
			c.Kill(0)
			c.Kill(1)
			<-time.After(absence(t))
			c.Start(0)
			c.Start(1)
		},
		// SIGKILL of all at once lost alerts in one run of five (docs/reliability.md).
		"all are stopped": func(c *streamtest.NATSCluster, _ string, _ func()) {
			for i := range 3 {
				c.Stop(i)
			}
			for i := range 3 {
				c.Start(i)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outageOfACluster(t, fault)
		})
	}
}

func outageOfACluster(t *testing.T, fault func(c *streamtest.NATSCluster, stream string, more func())) {
	cluster := streamtest.OwnNATSCluster(t)
	w := newWorldOf(t, streamtest.ConnectNATS(t, cluster.URL()), alerts.PublisherConfig{Replicas: 3})
	var all []api.Transition
	stop, stopped := make(chan struct{}), make(chan error, 1)
	w.ensure(t)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			key, since := fmt.Sprint("user:", len(all)/2), int64(1000+len(all))
			one := []api.Transition{alert(key, api.StateRaised, since), alert(key, api.StateCleared, since+1)}
			if err := w.publisher.Publish(t.Context(), one, 0); err != nil {
				stopped <- err
				return
			}
			all = append(all, one...)
		}
	}()
	more := func() {
		t.Helper()
		from := w.count("acked")
		streamtest.Eventually(t, "more is published", func() (bool, string) {
			now := w.count("acked") - from
			return now >= 20, fmt.Sprint(now)
		})
	}
	more()
	fault(cluster, w.alerts, more)
	more()
	close(stop)
	testkit.Must(t, <-stopped)
	w.wantInOrder(t, all)
}
