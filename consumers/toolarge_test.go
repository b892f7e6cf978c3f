package consumers_test

import (
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// If a reply is too large, the worker reads its events again at once, in smaller parts. An event that is too large by
// itself becomes a dead letter without its fields. The same holds for events that a worker had read before it died.
func TestEventsThatAreTooLargeDelayNoOthers(t *testing.T) {
	for _, how := range []string{"read", "claimed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w, log := newWorld(t), &testkit.Log{}
			small := strings.Repeat("x", 10_000)
			for i := range 40 {
				w.xadd(w.keys.Events(i%2), "key", w.keyIn(i%2, "small"), "pad", small)
			}
			large := w.xadd(w.keys.Events(3), "key", w.keyIn(3, "large"), "pad", strings.Repeat("y", 200_000))
			w.xadd(w.keys.Events(3), "key", w.keyIn(3, "small"))
			idle := time.Hour
			if how == "claimed" {
				idle = 200 * time.Millisecond
				dead := eventlog.NewReader(w.redis, w.keys, "dead", w.keys.All())
				testkit.Must(t, dead.CreateGroups(t.Context()))
				_, err := dead.Read(t.Context(), 100, -1)
				testkit.Must(t, err)
			}
			w.start(&recorder{}, func(c *consumers.Config) {
				c.Redis = streamtest.Connect(t, w.url, streamtest.Tight)
				c.Blocking, c.MinIdle = streamtest.Connect(t, w.url, streamtest.Tight), idle
				c.Log = slog.New(slog.NewTextHandler(log, nil))
			})
			for p, want := range map[int]int64{0: 20, 1: 20, 3: 1} {
				w.eventuallyUsed(w.keyIn(p, "small"), want)
			}
			w.eventually("no event waits", func() (bool, string) { return w.pending() == 0, fmt.Sprint(w.pending()) })
			letters := w.dead(3)
			if len(letters) != 1 || letters[0].Values["event"] != large || letters[0].Values["body"] != "{}" ||
				!strings.Contains(fmt.Sprint(letters[0].Values["reason"]), "too large: expected at most 100000 bytes") {
				t.Errorf("dead letters %v, expected one of %s", letters, large)
			}
			if left := w.redis.XRange(t.Context(), w.keys.Events(3), large, large).Val(); len(left) > 0 {
				t.Error("the event is still in the stream")
			}
			w.append(api.Event{Key: w.keyIn(3, "small"), Count: 1})
			w.eventuallyUsed(w.keyIn(3, "small"), 2)
			text := log.String()
			if outage := regexp.MustCompile("does not answer.*too large"); outage.MatchString(text) ||
				!strings.Contains(text, large) {
				t.Errorf("the log does not say what is too large:\n%s", text)
			}
		})
	}
}

// If a reply with events takes too long, the worker also reads them again at once, in smaller parts.
func TestASlowReplyDelaysNoEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 40 {
		w.xadd(w.keys.Events(1), "key", w.keyIn(1, "key"), "pad", strings.Repeat("x", 10_000))
	}
	w.start(&recorder{}, func(c *consumers.Config) {
		c.Redis = streamtest.Connect(t, w.url, streamtest.Slow)
		c.Blocking = streamtest.Connect(t, w.url, streamtest.Slow)
		c.MinIdle = time.Hour
	})
	w.eventuallyUsed(w.keyIn(1, "key"), 40)
}

// An event of more than 256 KiB becomes a dead letter and leaves its stream: each command that returns it occupies
// Redis for as long as the event is large. Events of its batch are counted and stay, and none counts as lost.
func TestALargeEventLeavesTheStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key, events := w.keyIn(2, "key"), w.keys.Events(2)
	fits := eventlog.MaxEventBytes - len("key"+key+"pad")
	w.xadd(events, "key", key, "pad", strings.Repeat("x", fits))
	large := w.xadd(events, "key", key, "pad", strings.Repeat("x", fits+1))
	w.xadd(events, "key", w.keyIn(1, "misplaced"))
	w.xadd(events, "key", key, "many", strings.Repeat("x", 4<<20))
	w.start(&recorder{}, nil)
	w.eventually("three events are dead letters", func() (bool, string) {
		n := len(w.dead(2))
		return n == 3 && w.pending() == 0, fmt.Sprint(n, w.pending())
	})
	w.eventuallyUsed(key, 1)
	letter := w.dead(2)[0].Values
	if want := "the event is too large: 262145 bytes in its fields, expected at most 262144; its key is " +
		strconv.Quote(key); letter["event"] != large || letter["reason"] != want || letter["body"] != "{}" {
		t.Errorf("dead letter %v, want one of %s: %s", letter, large, want)
	}
	left := w.redis.XRange(t.Context(), events, "-", "+").Val()
	if len(left) != 2 || left[0].Values["key"] != key || left[1].Values["key"] != w.keyIn(1, "misplaced") {
		t.Errorf("%d events are in the stream, want those of %s and %s", len(left), key, w.keyIn(1, "misplaced"))
	}
	w.append(api.Event{Key: key, Count: 1})
	w.eventuallyUsed(key, 2)
	if large, lost := w.letters("invalid"), w.sample("events_trimmed_unread_total"); large != 2 || lost != 0 {
		t.Errorf("%v dead letters of large events, want 2; %v events lost, want 0", large, lost)
	}
}
