package stream_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/stream"
)

// After a lost reply, a producer sends only the events with an id again.
func TestProducerSendsEventsWithIDsAgain(t *testing.T) {
	direct := streamtest.Connect(t, streamtest.Redis(t))
	proxy := streamtest.NewProxy(t, direct.Options().Addr)
	c, k := streamtest.Connect(t, proxy.Addr), newKeys(t, 4)
	warm(t, c)
	var outcomes []stream.Outcome
	p := newProducer(t, newLog(t, c, k, time.Minute), stream.ProducerConfig{
		Linger: time.Minute, MaxBatch: 4, OnFlush: func(o stream.Outcome) { outcomes = append(outcomes, o) },
	})
	proxy.LoseReplies(1)
	put(t, p, api.Event{Key: "plain", Count: 1}, api.Event{Key: "id", Count: 2, ID: "1"},
		api.Event{Key: "id", Count: 2, ID: "2"}, api.Event{Key: "plain", Count: 3})
	if err := p.Flush(t.Context()); !errors.Is(err, api.ErrOutcomeUnknown) {
		t.Errorf("flush: %v, want one that says that plain is unknown", err)
	}
	if len(outcomes) != 1 || outcomes[0].Appended != 2 || !reflect.DeepEqual(outcomes[0].Unknown,
		[]api.Event{{Key: "plain", Count: 4}}) || len(outcomes[0].Refused) != 0 ||
		outcomes[0].UnknownEvents != 2 || outcomes[0].RefusedEvents != 0 {
		t.Errorf("outcomes %+v", outcomes)
	}
	got := stored(t, direct, k)
	if !slices.Equal(got["plain"], []int64{4}) || !slices.Equal(got["id"], []int64{2, 2, 2, 2}) {
		t.Errorf("stored %v: what has an id was to be sent twice, and plain once", got)
	}
}

// If Redis does not come back, the flush ends at its timeout, and returns what is known
// of each event.
func TestProducerGivesUpInTime(t *testing.T) {
	server := streamtest.OwnRedis(t)
	c, k := streamtest.Connect(t, server.Addr()), newKeys(t, 4)
	warm(t, c)
	server.Stop()
	var outcome stream.Outcome
	p := newProducer(t, newLog(t, c, k, time.Minute), stream.ProducerConfig{FlushTimeout: 200 * time.Millisecond,
		OnFlush: func(o stream.Outcome) { outcome = o }})
	put(t, p, api.Event{Key: "id", Count: 2, ID: "1"})
	if err := p.Flush(t.Context()); err == nil {
		t.Error("the flush says nothing")
	}
	if len(outcome.Refused)+len(outcome.Unknown) != 1 || outcome.RefusedEvents+outcome.UnknownEvents != 1 ||
		outcome.Appended != 0 {
		t.Errorf("outcome %+v", outcome)
	}
}
