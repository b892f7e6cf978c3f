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
