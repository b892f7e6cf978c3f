package stream_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

const forGood = time.Hour // a linger that only Flush and Close end

func newProducer(t testing.TB, l *stream.Log, c stream.ProducerConfig) *stream.Producer {
	t.Helper()
	p, err := stream.NewProducer(l, c)
	testkit.Must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = p.Close(ctx)
	})
	return p
}

// embeddedLog is for tests that depend only on the producer.
func embeddedLog(t *testing.T) (*stream.Log, *redis.Client, *stream.Keys) {
	t.Helper()
	c, k := streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr()), newKeys(t, 4)
	return newLog(t, c, k, time.Minute), c, k
}

func put(t testing.TB, p *stream.Producer, list ...api.Event) {
	t.Helper()
	for _, e := range list {
		testkit.Must(t, p.Append(t.Context(), e))
	}
}

// The log has the sum of all that is appended, in batches of at most MaxBatch events. No entry is above the largest
// count, because workers would refuse it.
func TestProducerKeepsEverySum(t *testing.T) {
	c := streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr())
	rapid.Check(t, func(r *rapid.T) {
		k := newKeys(t, 3)
		list := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) api.Event {
			return api.Event{
				Key: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "key"),
				Count: rapid.OneOf(rapid.Int64Range(1, 9), rapid.Int64Range(api.MaxCount-9, api.MaxCount)).Draw(r,
					"count"),
			}
		}), 0, 30).Draw(r, "events")
		appended, batch, largest := 0, rapid.IntRange(1, 40).Draw(r, "batch"), 0
		p := newProducer(t, newLog(t, c, k, time.Minute), stream.ProducerConfig{
			Linger: forGood, MaxBatch: batch,
			OnFlush: func(o stream.Outcome) { appended, largest = appended+o.Appended, max(largest, o.Appended) },
		})
		want := map[string]int64{}
		for _, e := range list {
			put(t, p, e)
			want[e.Key] += e.Count
		}
		testkit.Must(t, p.Close(t.Context()))
		got := map[string]int64{}
		for key, counts := range stored(t, c, k) {
			for _, n := range counts {
				got[key] += n
				if n > api.MaxCount {
					r.Fatalf("an entry of %s has %d", key, n)
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || appended != len(list) || largest > batch {
			r.Fatalf("%d of %d events in batches of %d, at most %d are allowed; sums (-want +got):\n%s", appended,
				len(list), largest, batch, diff)
		}
	})
}

// While Redis is slow, the events that come are sent in one batch.
func TestProducerBatchesGrowWhileRedisIsSlow(t *testing.T) {
	server := streamtest.OwnRedis(t)
	c, k := streamtest.Connect(t, server.Addr()), newKeys(t, 4)
	warm(t, c)
	var sizes []int
	p := newProducer(t, newLog(t, c, k, time.Minute), stream.ProducerConfig{
		OnFlush: func(o stream.Outcome) { sizes = append(sizes, o.Appended) }})
	server.Pause()
	put(t, p, events(200)...)
	server.Resume()
	testkit.Must(t, p.Flush(t.Context()))
	if n := len(stored(t, c, k)); n != 200 || len(sizes) > 2 {
		t.Errorf("%d events went in batches of %v, want 200 in one or two", n, sizes)
	}
}

// If Redis does not answer within FlushTimeout, the outcome is unknown. It is reported
// once, and nothing is sent again.
func TestProducerWithRedisFrozen(t *testing.T) {
	server := streamtest.OwnRedis(t)
	c, k := streamtest.Connect(t, server.Addr(), func(o *redis.Options) { o.ReadTimeout = time.Hour }), newKeys(t, 4)
	warm(t, c)
	var unknown []api.Event
	p := newProducer(t, newLog(t, c, k, time.Minute), stream.ProducerConfig{
		Linger: forGood, FlushTimeout: 50 * time.Millisecond,
		OnFlush: func(o stream.Outcome) { unknown = append(unknown, o.Unknown...) },
	})
	server.Pause()
	put(t, p, api.Event{Key: "a", Count: 1}, api.Event{Key: "a", Count: 2})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.Close(ctx); !errors.Is(err, api.ErrOutcomeUnknown) {
		t.Fatalf("close: error %v, want %v", err, api.ErrOutcomeUnknown)
	}
	if diff := cmp.Diff([]api.Event{{Key: "a", Count: 3}}, unknown); diff != "" {
		t.Errorf("unknown (-want +got):\n%s", diff)
	}
	server.Resume()
	streamtest.Eventually(t, "the entry comes in", func() (bool, string) {
		got := stored(t, c, k)
		return cmp.Equal(got, map[string][]int64{"a": {3}}), fmt.Sprint(got)
	})
}

func TestProducerTakesNoBadEvents(t *testing.T) {
	log, c, k := embeddedLog(t)
	p := newProducer(t, log, stream.ProducerConfig{})
	for want, e := range map[error]api.Event{api.ErrBadKey: {Key: "a\n", Count: 1}, api.ErrBadCount: {Key: "a"}} {
		if err := p.Append(t.Context(), e); !errors.Is(err, want) {
			t.Errorf("%+v: error %v, want %v", e, err, want)
		}
	}
	testkit.Must(t, p.Close(t.Context()))
	if got := stored(t, c, k); len(got) != 0 {
		t.Errorf("events %v, want none", got)
	}
}

func TestNewProducerRefusesNegativeBounds(t *testing.T) {
	log, _, _ := embeddedLog(t)
	for _, c := range []stream.ProducerConfig{{MaxPending: -1}, {MaxBatch: -1}, {Linger: -1}, {FlushTimeout: -1}} {
		if _, err := stream.NewProducer(log, c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	if _, err := stream.NewProducer(nil, stream.ProducerConfig{}); err == nil {
		t.Error("no log was taken")
	}
}

// Events of one key in one flush are merged if their values are the same, so that each value is sent once.
func TestEventsAreMergedByTheirValues(t *testing.T) {
	c, k := streamtest.AnyRedis(t), newKeys(t, 1)
	of := func(user string, count int64) api.Event {
		return api.Event{Key: "ip", Count: count, Values: map[string]string{"user": user}}
	}
	plain := api.Event{Key: "ip", Count: 1}
	var flushes []stream.Outcome
	p := newProducer(t, newLog(t, c, k, time.Minute), stream.ProducerConfig{Linger: forGood,
		OnFlush: func(o stream.Outcome) { flushes = append(flushes, o) }})
	reused := of("a", 1) // its caller changes the map afterwards
	put(t, p, reused)
	reused.Values["user"] = "z"
	put(t, p, of("b", 2), plain, of("a", 4), plain)
	testkit.Must(t, p.Flush(t.Context()))
	put(t, p, plain)
	testkit.Must(t, p.Flush(t.Context()))
	if diff := cmp.Diff([]stream.Outcome{{Appended: 5, Entries: 3}, {Appended: 1, Entries: 1}}, flushes); diff != "" {
		t.Errorf("flushes (-want +got):\n%s", diff)
	}
	entries, err := c.XRange(t.Context(), k.Events(0), "-", "+").Result()
	testkit.Must(t, err)
	var got []map[string]any
	for _, e := range entries {
		got = append(got, e.Values)
	}
	want := []map[string]any{{"key": "ip", "count": "5", "user": "a"}, {"key": "ip", "count": "2", "user": "b"},
		{"key": "ip", "count": "2"}, {"key": "ip", "count": "1"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

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

// However often events with an id are sent in vain, the error has the first failure of the other events and the last
// failure of these.
func TestProducerReportsFewFailures(t *testing.T) {
	direct := streamtest.Connect(t, streamtest.Redis(t))
	proxy := streamtest.NewProxy(t, direct.Options().Addr)
	c, k := streamtest.Connect(t, proxy.Addr), newKeys(t, 4)
	warm(t, c)
	proxy.LoseReplies(1_000)
	var outcome stream.Outcome
	p := newProducer(t, newLog(t, c, k, time.Minute), stream.ProducerConfig{Linger: forGood,
		FlushTimeout: time.Second, OnFlush: func(o stream.Outcome) { outcome = o }})
	list := events(21)
	for i := range list[1:] {
		list[i+1].ID = "1"
	}
	put(t, p, list...)
	if err := p.Close(t.Context()); !errors.Is(err, api.ErrOutcomeUnknown) || strings.Count(err.Error(), "\n") > 1 {
		t.Errorf("close: error %v, want at most 2 lines", err)
	}
	if outcome.UnknownEvents != 21 || len(outcome.Unknown) != 21 || outcome.RefusedEvents+outcome.Appended != 0 {
		t.Errorf("outcome %+v, want all unknown", outcome)
	}
}
