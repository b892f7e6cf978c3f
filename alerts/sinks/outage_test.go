package sinks_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/alerts/sinks"
	"github.com/streamcounter/streamcounter/api"
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
	_, before := r.taken()
	streamtest.Eventually(r.t, 30*time.Second, "the endpoint is asked", func() (bool, string) {
		_, attempts := r.taken()
		return attempts > before, ""
	})
}

// Somebody deletes the sink's consumer while its endpoint is down: undelivered alerts are delivered anyway.
func TestTheConsumerIsDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, streamtest.NATS(t))
	js := streamtest.JetStream(t, w.url)
	r, _ := w.pager()
	r.answers(down)
	all := w.raised(9)
	r.awaitAttempt()
	testkit.Must(t, js.DeleteConsumer(t.Context(), w.stream(), "sink-pager"))
	all = append(all, w.raised(9)...)
	r.answers(nil)
	wantInOrder(t, r.awaitOf(len(all)), all)
}

// NATS restarts without the consumer, and nothing reports that the consumer is missing.
func TestTheConsumerIsLost(t *testing.T) {
	t.Parallel()
	server := streamtest.OwnNATS(t)
	w := newWorld(t, server.URL())
	r, _ := w.pager()
	server.Stop()
	lost, err := filepath.Glob(filepath.Join(server.Dir(), "jetstream/*/streams", w.stream(), "obs/*"))
	testkit.Must(t, err)
	if len(lost) != 1 {
		t.Fatalf("the consumers are %s", lost)
	}
	testkit.Must(t, os.RemoveAll(lost[0]))
	server.Start()
	all := w.raised(9)
	wantInOrder(t, r.awaitOf(len(all)), all)
}

// The stream of alerts is recreated, so its sequence begins again. No alert of the new stream is skipped, whether it
// has fewer alerts than the sink had read or more, and whether the sink runs or not.
func TestTheStreamIsMadeAnew(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"fewer": 9, "more": 90} {
		for _, how := range []string{"running", "stopped"} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, streamtest.NATS(t))
				js := streamtest.JetStream(t, w.url)
				r, first := w.pager()
				w.raised(30)
				r.awaitOf(30)
				first.stop()
				second := w.start() // stores where the first one was
				w.raised(9)
				all := r.awaitOf(39)
				if how == "stopped" {
					second.stop()
				}
				testkit.Must(t, js.DeleteStream(t.Context(), w.stream()))
				testkit.Must(t, w.publisher.Ensure(t.Context()))
				all = append(all, w.raised(n)...)
				if how == "stopped" {
					w.start()
				}
				wantInOrder(t, r.awaitOf(len(all)), all)
			})
		}
	}
}

// acknowledged waits until the sink pager has acknowledged all alerts.
func (w *world) acknowledged(js jetstream.JetStream) {
	w.t.Helper()
	streamtest.Eventually(w.t, 20*time.Second, "all is acknowledged", func() (bool, string) {
		consumer, err := js.Consumer(w.t.Context(), w.stream(), "sink-pager")
		if err != nil {
			return false, err.Error()
		}
		info := consumer.CachedInfo()
		return info.NumAckPending == 0 && info.NumPending == 0, fmt.Sprintf("%+v", info)
	})
}

// Alerts are purged while no process delivers. Every alert that was not delivered is counted, even if no alert
// follows, and no alert that was delivered is counted. A restart without a purge counts none.
func TestAPurgeWhileTheSinkIsStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, streamtest.NATS(t))
	js := streamtest.JetStream(t, w.url)
	r, first := w.pager()
	w.raised(5)
	r.awaitOf(5)
	w.acknowledged(js)
	first.stop()
	again := w.start()
	w.raised(2)
	r.awaitOf(7)
	w.acknowledged(js) // NATS gets an acknowledgement after the receiver has its alert
	again.stop()
	if n := again.count(t, "pager", "expired"); n != 0 {
		t.Errorf("%d alerts are lost at a restart", n)
	}
	w.raised(7)
	stream, err := js.Stream(t.Context(), w.stream())
	testkit.Must(t, err)
	testkit.Must(t, stream.Purge(t.Context()))
	last := w.start()
	streamtest.Eventually(t, 30*time.Second, "the loss is counted", func() (bool, string) {
		n := last.count(t, "pager", "expired")
		return n == 7, fmt.Sprint(n, " lost\n", w.log)
	})
	if !strings.Contains(w.log.String(), `alerts=7`) {
		t.Errorf("the log does not say it:\n%s", w.log)
	}
}

// A stopping process has an attempt under way for longer than lockTTL. No other process sends meanwhile.
func TestAStopKeepsTheLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, streamtest.NATS(t))
	w.drain = 9 * time.Second
	var mu sync.Mutex
	var under, most, ended int // running attempts, the largest number of them, and ended attempts
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the client is gone
		mu.Lock()
		under++
		most = max(most, under)
		first := ended == 0
		mu.Unlock()
		if first {
			<-r.Context().Done()
		}
		mu.Lock()
		under--
		ended++
		mu.Unlock()
	}))
	t.Cleanup(server.Close)
	w.sinks(w.webhook("pager", &receiver{Server: server}, ", keys: ['user:*']"))
	one := w.start()
	js := streamtest.JetStream(t, w.url)
	streamtest.Eventually(t, 30*time.Second, "the sink has its consumer", func() (bool, string) {
		_, err := js.Consumer(t.Context(), w.stream(), "sink-pager")
		return err == nil, fmt.Sprint(err)
	})
	w.raised(1)
	streamtest.Eventually(t, 30*time.Second, "it is being sent", func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		return under == 1, ""
	})
	w.start()
	one.stop()
	streamtest.Eventually(t, 30*time.Second, "the other process sends it", func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		return ended > 1, fmt.Sprint(ended)
	})
	mu.Lock()
	defer mu.Unlock()
	if most > 1 {
		t.Errorf("%d processes sent an alert at a time", most)
	}
}

// On a cluster, which refuses two messages at a time that name one lock: every alert is delivered, even if the leader
// of the sinks' stream is killed, and active alerts are kept.
func TestOnACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes 30 s")
	}
	t.Parallel()
	c := streamtest.OwnNATSCluster(t)
	w := newWorldOf(t, c.URL(), 3)
	r, a := newReceiver(t), newFakeAM(t)
	both := w.webhook("pager", r, "") + fmt.Sprintf("  - {name: am, type: alertmanager, url: %q}\n", a.URL)
	w.sinks(both)
	first := w.start()
	w.ready(r)
	w.readyAM(a)
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
	// Later a write may time out and still be under way.
	if n := strings.Count(w.log.String(), "is being written"); n > 0 {
		t.Errorf("the lock was in the way of itself %d times:\n%s", n, w.log)
	}
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
