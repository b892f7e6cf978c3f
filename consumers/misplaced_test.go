package consumers_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
)

// A producer computes the partition of a key wrongly. The event becomes a dead letter of the partition to which it
// was appended, with a reason that names the right partition. It is not counted and causes no transition; the other
// events of its batch count.
func TestAnEventInTheWrongPartitionIsADeadLetter(t *testing.T) {
	each(t, func(t *testing.T, url string) {
		w, r := newWorld(t, url), &recorder{}
		key, good := w.keyIn(1, "misplaced"), w.keyIn(2, "good")
		w.append(api.Event{Key: good, Count: 1})
		wrong := w.xadd(w.keys.Events(2), "key", key, "count", 10, "id", "a")
		w.append(api.Event{Key: good, Count: 9})
		w.start(r, nil)
		w.eventually("the event is a dead letter", func() (bool, string) {
			n := len(w.dead(2))
			return n == 1 && w.pending() == 0, fmt.Sprint(n, w.pending())
		})
		letter := w.dead(2)[0].Values
		reason, body := fmt.Sprint(letter["reason"]), fmt.Sprint(letter["body"])
		if letter["event"] != wrong || !strings.Contains(reason, "partition 2") ||
			!strings.Contains(reason, "partition 1") || !strings.Contains(body, key) ||
			!strings.Contains(body, `"id":"a"`) {
			t.Errorf("the dead letter is %v", letter)
		}
		w.eventuallyUsed(good, 10)
		w.told(r, good, toTheTop)
		if n := w.used(key); n != 0 || r.of(key) != "" {
			t.Errorf("the event counts %d, published %q", n, r.of(key))
		}
		w.append(api.Event{Key: key, Count: 3, ID: "a"}) // its id is not used up
		w.eventuallyUsed(key, 3)
		if misplaced, dead := w.letters("misplaced"), w.sample("dead_letters_total"); misplaced != 1 || dead != 1 {
			t.Errorf("misplaced %v, dead letters %v", misplaced, dead)
		}
	})
}
