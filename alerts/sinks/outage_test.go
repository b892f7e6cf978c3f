package sinks_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/alerts/sinks"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/natsconn"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func (w *world) stream() string {
	_, name := alerts.StreamNames(w.prefix)
	return name
}

// raised publishes n alerts of a few keys.
func (w *world) raised(n int) (list []api.Transition) {
	w.t.Helper()
	for i := range n {
		list = append(list, w.alert(fmt.Sprintf("user:%d", i%7), 80, api.StateRaised))
	}
	return w.publish(list...)
}

// awaitAttempt waits until the endpoint, which is down, has received a request.
func (r *receiver) awaitAttempt() {
	r.t.Helper()
	before := r.count()
	streamtest.Eventually(r.t, "the endpoint is asked", func() (bool, string) { return r.count() > before, "" })
}

// A sink that runs before the stream of alerts exists delivers it from its first alert on.
func TestTheStreamIsMadeLater(t *testing.T) {
	t.Parallel()
	w := newFiles(t, streamtest.NATS(t))
	r := newReceiver(t)
	w.sinks(w.webhook("pager", r, ""))
	w.start()
	streamtest.EventuallyLogged(t, w.log, "stream not found", 1)
	w.addStreams()
	all := w.raised(9)
	wantInOrder(t, r.awaitOf(9), all)
}

// acknowledged waits until the sink pager has acknowledged all alerts.
func (w *world) acknowledged(js jetstream.JetStream) {
	w.t.Helper()
	w.awaitConsumer(js, "all is acknowledged", func(info *jetstream.ConsumerInfo) bool {
		return info.NumAckPending == 0 && info.NumPending == 0
	})
}

// awaitConsumer waits for a state of the sink pager's consumer.
func (w *world) awaitConsumer(js jetstream.JetStream, what string, is func(*jetstream.ConsumerInfo) bool) {
	w.t.Helper()
	streamtest.Eventually(w.t, what, func() (bool, string) {
		consumer, err := js.Consumer(w.t.Context(), w.stream(), "sink-pager")
		if err != nil {
			return false, err.Error()
		}
		info := consumer.CachedInfo()
		return is(info), fmt.Sprintf("%+v", info)
	})
}

// The connection breaks, and alerts that JetStream has sent are lost with it. They come in order, before the later
// alerts of their keys, and none counts as removed.
func TestAlertsAreLostOnTheWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, streamtest.NATS(t))
	js := streamtest.JetStream(t, w.url)
	proxy := streamtest.NewProxy(t, strings.TrimPrefix(w.url, "nats://"))
	w.url = "nats://" + proxy.Addr // of the sinks
	r := newReceiver(t)
	w.sinks(w.webhook("pager", r, ""))
	p := w.start()
	w.ready(r)
	w.acknowledged(js)
	proxy.HoldReplies()
	all := w.raised(30)
	w.awaitConsumer(js, "JetStream has sent them", func(info *jetstream.ConsumerInfo) bool {
		// On a very slow machine the lock may end first.
		return info.NumAckPending == 30 || p.metric(t, "streamcounter_sink_delivering", "pager") == 0
	})
	proxy.Sever()
	proxy.Heal()
	all = append(all, w.raised(30)...)
	wantInOrder(t, r.awaitOf(60), all)
	if n := p.count(t, "pager", "expired"); n != 0 {
		t.Errorf("%d alerts count as removed:\n%s", n, w.log)
	}
}

// A stopping process has an attempt under way for longer than lockTTL. No other process sends meanwhile.
func TestAStopKeepsTheLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, streamtest.NATS(t))
	w.drain = 9 * time.Second
	var under, most, ended atomic.Int64 // running attempts, the largest number of them, and ended attempts
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the client is gone
		if n := under.Add(1); n > most.Load() {
			most.Store(n)
		}
		if ended.Load() == 0 {
			<-r.Context().Done()
		}
		under.Add(-1)
		ended.Add(1)
	}))
	t.Cleanup(server.Close)
	w.sinks(w.webhook("pager", &receiver{Server: server}, ", keys: ['user:*']"))
	one := w.start()
	js := streamtest.JetStream(t, w.url)
	streamtest.Succeeds(t, "the sink has its consumer", func() error {
		_, err := js.Consumer(t.Context(), w.stream(), "sink-pager")
		return err
	})
	w.raised(1)
	streamtest.Eventually(t, "it is being sent", func() (bool, string) { return under.Load() == 1, "" })
	w.start()
	one.stop()
	streamtest.Eventually(t, "the other process sends it", func() (bool, string) {
		return ended.Load() > 1, fmt.Sprint(ended.Load())
	})
	if most.Load() > 1 {
		t.Errorf("%d processes sent an alert at a time", most.Load())
	}
}

// On a cluster every alert is delivered, even if the leader of the sinks' stream is killed, and active alerts are kept.
func TestOnACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes 30 s")
	}
	t.Parallel()
	c := streamtest.OwnNATSCluster(t)
	w := newWorld(t, c.URL(), 3)
	r, a := newReceiver(t), newFakeAM(t)
	both := w.webhook("pager", r, "") + a.sink("")
	w.sinks(both)
	first := w.start()
	w.ready(r, a)
	all := w.raised(100)
	wantInOrder(t, r.awaitOf(100), all)
	js := streamtest.JetStream(t, w.url)
	w.acknowledged(js)
	first.stop()
	late := newReceiver(t)
	late.answers(down)
	r.answers(func(key string, w http.ResponseWriter) bool { return key != "refused" || down(key, w) })
	w.sinks(both + w.webhook("late", late, ""))
	second := w.start()
	w.ready(late)
	refused := w.publish(w.alert("refused", 80, api.StateRaised))
	all = append(all, w.raised(10)...)
	wantInOrder(t, r.awaitOf(110), all)
	second.stop() // in both sinks the first alert since their start is not acknowledged
	w.start()
	r.answers(nil)
	late.answers(nil)
	late.awaitOf(11)
	r.awaitOf(111)
	if n := r.copies(all[:100]) + late.copies(all[:100]) - 100; n != 0 {
		t.Errorf("%d alerts from before were sent again, or to a new sink", n)
	}
	all = slices.Insert(all, 100, refused...)
	name := sinks.StreamName(w.prefix)
	leader := c.LeaderOf(name)
	c.Kill(leader)
	all = append(all, w.raised(100)...)
	wantInOrder(t, r.awaitOf(211), all)
	w.publish(w.alert("last", 80, api.StateRaised))
	a.await(t, 0, "last 80")
	c.Start(leader)
	if log := w.log.String(); strings.Contains(log, "removed from JetStream") {
		t.Errorf("nothing was removed:\n%s", log)
	}
}

// If NATS refuses the connection, the log says why, and not that a request could not be sent.
func TestWrongPasswordForNATS(t *testing.T) {
	t.Parallel()
	server, _ := streamtest.EmbeddedNATS(t, server.Options{Username: "u", Password: "right"})
	w := newFiles(t, server.ClientURL())
	w.sinks(w.webhook("pager", newReceiver(t), ""))
	nc, err := natsconn.Connect(natsconn.Config{URL: w.url, Wait: true, Log: slog.New(slog.DiscardHandler)},
		nats.UserInfo("u", "wrong"), nats.ReconnectBufSize(-1))
	testkit.Must(t, err)
	t.Cleanup(nc.Close)
	w.run(nc)
	streamtest.EventuallyLogged(t, w.log, "the sink cannot read alerts", 1)
	streamtest.EventuallyLogged(t, w.log, "Authorization Violation", 1)
	if text := w.log.String(); strings.Contains(text, "buffer") {
		t.Error(text)
	}
}
