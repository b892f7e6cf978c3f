package consumers_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// keyIn returns a key of the rule api in partition p.
func (w *world) keyIn(p int, name string) string { return keyOf(w.keys, p, "user:"+name) }

const toTheTop = "raised 50, raised 100, throttled 100"

// A string replaces one of a partition's own keys. That partition is quarantined, and this is logged; the others are
// worked on. No event that could be counted becomes a dead letter. When the string is deleted, every event is counted
// once, without further help.
func TestAKeyOfAnotherTypeLeavesOnePartitionOut(t *testing.T) {
	ctx := context.Background()
	for what, name := range map[string]func(w *world) string{
		"events": func(w *world) string { return w.keys.Events(2) },
		"outbox": func(w *world) string { return w.keys.Outbox(2) },
		"levels": func(w *world) string { return w.keys.Levels(2) },
		"due":    func(w *world) string { return w.keys.Due(2) },
		"ids":    func(w *world) string { return w.keys.IDs(2) },
	} {
		t.Run(what, func(t *testing.T) {
			bothWays(t, func(t *testing.T) {
				w, r := newWorld(t), &recorder{}
				w.start(r, nil)
				bad := w.keyIn(2, "bad")
				w.append(api.Event{Key: bad, Count: 1})
				w.eventuallyUsed(bad, 1)
				w.redis.Del(ctx, name(w))
				testkit.Must(t, w.redis.Set(ctx, name(w), "not ours", 0).Err())
				if what != "events" { // otherwise nothing can be appended
					w.append(api.Event{Key: bad, Count: 10, ID: "a"})
				}
				w.shows("partition_quarantined", 1)
				for _, p := range []int{0, 1, 3} {
					good := w.keyIn(p, "good")
					w.append(api.Event{Key: good, Count: 10})
					w.eventually("the others are counted and published", func() (bool, string) {
						return w.used(good) == 10 && r.of(good) == toTheTop, fmt.Sprint(w.used(good), r.of(good))
					})
				}
				w.redis.Del(ctx, name(w))
				if what == "events" {
					w.append(api.Event{Key: bad, Count: 10, ID: "a"})
				}
				w.eventuallyUsed(bad, 11)
				w.eventually("it is worked on again", func() (bool, string) {
					return w.sample("partition_quarantined") == 0 && w.pending() == 0 &&
							(what == "outbox" || r.of(bad) == toTheTop), fmt.Sprint(w.sample("partition_quarantined"),
							w.pending(), r.of(bad))
				})
				if n := w.sample("dead_letters_total"); n != 0 {
					t.Errorf("%v dead letters", n)
				}
			})
		})
	}
}

// Redis refuses the fold of one partition. The events of the other partitions of that read are folded at once, and
// not only when another worker claims them.
func TestARefusedPartitionKeepsNoneOfItsRead(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		w := newWorld(t)
		w.redis.Set(context.Background(), w.keys.Levels(2), "not ours", 0)
		for p := range 4 {
			w.append(api.Event{Key: w.keyIn(p, "k"), Count: 10})
		}
		w.start(&recorder{}, func(c *consumers.Config) { c.MinIdle, c.QuarantineFor = time.Minute, time.Minute })
		for _, p := range []int{0, 1, 3} {
			w.eventuallyUsed(w.keyIn(p, "k"), 10)
		}
		w.eventually("the partition is quarantined, its event pending", func() (bool, string) {
			return w.sample("partition_quarantined") == 1 && w.pending() == 1,
				fmt.Sprint(w.sample("partition_quarantined"), w.pending())
		})
	})
}

// A string replaces a partition's dead stream. Events that cannot be counted stay pending until they can become dead
// letters, and delay no other events.
func TestNoDeadStream(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(&recorder{}, nil)
		good := w.keyIn(2, "good")
		w.redis.Set(context.Background(), w.keys.Dead(2), "not ours", 0)
		w.xadd(w.keys.Events(2), "key", good, "count", "x")
		for n := range int64(3) {
			w.append(api.Event{Key: good, Count: 1})
			w.eventuallyUsed(good, n+1)
		}
		if n := w.pending(); n != 1 {
			t.Fatalf("%d events pending, expected the one that is to be a dead letter", n)
		}
		w.redis.Del(context.Background(), w.keys.Dead(2))
		w.eventually("it is a dead letter", func() (bool, string) {
			return w.sample("dead_letters_total") == 1 && w.pending() == 0,
				fmt.Sprint(w.sample("dead_letters_total"), w.pending())
		})
	})
}

// Garbage in an outbox becomes a dead letter with the reason, and the entries after it are published, in order.
func TestGarbageInAnOutboxIsPutAside(t *testing.T) {
	t.Parallel()
	w, r := newWorldOf(t, anyRedis(t), 1), &recorder{}
	w.xadd(w.keys.Outbox(0), "x", "y")
	w.xadd(w.keys.Outbox(0), "rule", strings.Repeat("a", 5000), "level", strings.Repeat("9", 5000))
	w.append(api.Event{Key: "user:1", Count: 10})
	w.start(r, nil)
	w.told(r, "user:1", toTheTop)
	w.waiting(0, 0)
	w.eventually("its dead letters are counted", func() (bool, string) {
		n := w.letters("outbox")
		return n == 2, fmt.Sprint(n)
	})
	for _, l := range w.dead(0) {
		if reason := l.Values["reason"].(string); !strings.HasPrefix(reason, "outbox: bad transition: ") ||
			len(reason) > 300 || len(l.Values["body"].(string)) > 4200 {
			t.Errorf("a letter of %d bytes for: %s", len(l.Values["body"].(string)), reason)
		}
	}
}

// A producer appends an event with the greatest possible ID, so nobody can append any more: this is logged once, and
// a metric shows it until the stream is deleted.
func TestAnIDOfTheFutureIsTold(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, log := newWorldOf(t, streamtest.Redis(t), 4), &testkit.Log{}
	event := &redis.XAddArgs{Stream: w.keys.Events(2), ID: "18446744073709551615-18446744073709551615",
		Values: []any{"key", w.keyIn(2, "k")}}
	testkit.Must(t, w.redis.XAdd(ctx, event).Err())
	w.start(&recorder{}, func(c *consumers.Config) { c.Log = slog.New(slog.NewTextHandler(log, nil)) })
	w.eventually("the metric tells", func() (bool, string) {
		n := w.sample("newest_event_ahead_seconds")
		return n > 1e9 && strings.Contains(log.String(), "ID of the future"), fmt.Sprint(n)
	})
	w.redis.Del(ctx, w.keys.Events(2))
	w.shows("newest_event_ahead_seconds", 0)
	if n := strings.Count(log.String(), "ID of the future"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
}
