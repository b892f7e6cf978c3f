package consumers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/consumers"
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
			bothWays(t, func(t *testing.T, url string) {
				w, r := newWorld(t, url), &recorder{}
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
	bothWays(t, func(t *testing.T, url string) {
		w := newWorld(t, url)
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
	bothWays(t, func(t *testing.T, url string) {
		w := newWorld(t, url)
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

// garbageEntries are outbox entries that no code of ours wrote. NATS would refuse some of them forever; others would
// be published on subjects where nobody expects them.
func garbageEntries() map[string][]any {
	whole := func(change ...any) []any {
		fields := map[any]any{"rule": "api", "key": "user:1", "state": "raised", "level": 50, "limit": 10,
			"window": 1000, "used": 5, "at": 1, "since": 1, "until": 2, "expires": 3, "flags": ""}
		for i := 0; i < len(change); i += 2 {
			fields[change[i]] = change[i+1]
		}
		var out []any
		for name, value := range fields {
			out = append(out, name, value)
		}
		return out
	}
	return map[string][]any{
		"other fields":          {"x", "y"},
		"no rule":               whole("rule", ""),
		"a rule of wildcards":   whole("rule", "*.>"),
		"a rule of two tokens":  whole("rule", "a.b"),
		"a rule with a space":   whole("rule", "a b"),
		"a rule of 5,000 bytes": whole("rule", strings.Repeat("a", 5000)),
		"no key":                whole("key", ""),
		"a key of 5,000 bytes":  whole("key", strings.Repeat("k", 5000)),
		"a key with a NUL":      whole("key", "a\x00b"),
		"a key of no UTF-8":     whole("key", "\xff"),
		"an unknown state":      whole("state", "throttled.>"),
		"no state":              whole("state", ""),
		"a level of 0":          whole("level", 0),
		"a level above the top": whole("level", 101),
		"a level that is none":  whole("level", "1e3"),
		"a throttle at 50":      whole("state", "throttled"),
		"a window of 0":         whole("window", 0),
		"used below zero":       whole("used", -1),
		"a time after 9999":     whole("at", "9223372036854775807"),
		"no end":                whole("state", "throttled", "level", 100, "expires", 253402300799999),
		"no number":             whole("since", "nan"),
	}
}

// Garbage in an outbox becomes a dead letter with the reason, and the entries after it are published, in order.
func TestGarbageInAnOutboxIsPutAside(t *testing.T) {
	each(t, func(t *testing.T, url string) {
		ctx := context.Background()
		w, r := newWorldOf(t, url, 1), &recorder{}
		garbage := garbageEntries()
		for _, fields := range garbage {
			w.xadd(w.keys.Outbox(0), fields...)
		}
		w.append(api.Event{Key: "user:1", Count: 10})
		w.start(r, nil)
		w.told(r, "user:1", toTheTop)
		w.eventually("the outbox is empty and its dead letters are counted", func() (bool, string) {
			n, letters := w.redis.XLen(ctx, w.keys.Outbox(0)).Val(), w.letters("outbox")
			return n == 0 && letters == float64(len(garbage)), fmt.Sprint(n, letters)
		})
		letters := w.dead(0)
		if len(letters) != len(garbage) {
			t.Fatalf("%d letters, expected %d", len(letters), len(garbage))
		}
		for _, l := range letters {
			if reason := l.Values["reason"].(string); !strings.HasPrefix(reason, "outbox: bad transition: ") ||
				len(reason) > 300 || len(l.Values["body"].(string)) > 4200 {
				t.Errorf("a letter of %d bytes for: %s", len(l.Values["body"].(string)), reason)
			}
		}
	})
}
