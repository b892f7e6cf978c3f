package alerts_test

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A server does not answer the first publish. The second message of that subject must not overtake it, and the
// message that is sent again keeps its ID.
func TestNothingOvertakesAnUnansweredPublish(t *testing.T) {
	nc := streamtest.ConnectNATS(t, streamtest.NATS(t))
	prefix := streamtest.Prefix(t)
	heard, n := make(chan string, 10), 0
	_, err := nc.Subscribe(prefix+".throttle.>", func(m *nats.Msg) {
		heard <- m.Header.Get(nats.MsgIdHdr)
		if n++; n > 1 { // one goroutine calls it
			_ = m.Respond(fmt.Appendf(nil, `{"stream":"X","seq":%d}`, n))
		}
	})
	testkit.Must(t, err)
	p, err := alerts.NewPublisher(nc, alerts.PublisherConfig{Prefix: prefix, AckTimeout: 100 * time.Millisecond,
		Log: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	one, two := throttle("k", api.StateThrottled, 1000), throttle("k", api.StateReleased, 2000)
	testkit.Must(t, p.Publish(t.Context(), []api.Transition{one, two}, 0))
	// The publisher has created the streams meanwhile, and that answer may come first.
	seen := []string{<-heard, <-heard, <-heard}
	first, second := one.MessageID(prefix), two.MessageID(prefix)
	if want := []string{first, first, second}; !slices.Equal(seen, want) {
		t.Fatalf("published %v, expected %v", seen, want)
	}
	testkit.Must(t, nc.Flush())
	if len(heard) != 0 {
		t.Errorf("and then %s", <-heard)
	}
}

// Alerts of one key are in the stream in the order in which they were written, whatever their levels: alerts of one
// subject wait for each other, and alerts of another subject of the key wait with them.
func TestAlertsOfAKeyKeepTheirOrder(t *testing.T) {
	nc, err := nats.Connect(streamtest.NATS(t))
	testkit.Must(t, err)
	defer nc.Close()
	w := newWorld(t, nc)
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
