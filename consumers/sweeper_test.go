package consumers

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

type nowhere struct{}

func (nowhere) Publish(context.Context, []api.Transition, int) error { return nil }

// A release that comes due while all keys are looked at again, after a change of the rules, waits for
// one step of them, wherever they have got to.
func TestDueReleasesGoFirst(t *testing.T) {
	const levelled = 10*sweepStep + 1
	ctx, now := t.Context(), time.Now().UnixMilli()
	c := streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr())
	keys, err := stream.NewKeys("sc", 2)
	testkit.Must(t, err)
	rules, err := windows.NewRules([]*windows.Rule{
		{Name: "long", Match: "long:*", Windows: []windows.Window{{Limit: 1, Per: time.Hour}}},
		{Name: "short", Match: "short:*", Windows: []windows.Window{{Limit: 1, Per: 2 * time.Second}}}})
	testkit.Must(t, err)
	counter := counters.New(c, keys)
	counter.Now = func() int64 { return now }
	take := func(key string) {
		_, err := counter.Check(ctx, []counters.Request{{Plan: rules.Match(key), Key: key, Cost: 1}})
		testkit.Must(t, err)
	}
	pool, err := NewPool(Config{Redis: c, Blocking: c, Keys: keys, Counter: counter, Publisher: nowhere{},
		Rules: func() *windows.Rules { return rules }, Metrics: NewMetrics(prometheus.NewRegistry()),
		Log: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	for i := range levelled {
		take(fmt.Sprint("long:", i))
	}
	s := pool.sweeper
	s.left.parts = keys.All()
	turns := 0
	for ; s.left.some() && turns <= levelled; turns++ {
		take("short:1")
		now += 5000 // its window and its hold are over
		before := len(s.left.keys)
		_, err := s.turn(ctx)
		testkit.Must(t, err)
		if looked := before - len(s.left.keys); looked > sweepStep {
			t.Fatalf("one turn looked at %d keys again, expected %d at most", looked, sweepStep)
		}
		standing, err := counter.Levelled(ctx, keys.Partition("short:1"))
		testkit.Must(t, err)
		if slices.Contains(standing, "short:1") {
			t.Fatalf("turn %d: a release that is due was left for the next one", turns)
		}
	}
	if turns < levelled/sweepStep || turns > levelled/sweepStep+2 {
		t.Errorf("the round took %d turns for %d keys in 2 partitions", turns, levelled)
	}
}
