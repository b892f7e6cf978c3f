package consumers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
)

// A producer computes the partition of a key wrongly. The event becomes a dead letter of the partition to which it
// was appended, with a reason that names the right partition. It is not counted and causes no transition; the other
// events of its batch count.
func TestAnEventInTheWrongPartitionIsADeadLetter(t *testing.T) {
	each(t, misplaced)
}

func misplaced(t *testing.T, url string) {
	ctx := context.Background()
	w, r := newWorld(t, url), &recorder{}
	key, good := w.keyIn(1, "misplaced"), w.keyIn(2, "good")
	w.append(api.Event{Key: good, Count: 1})
	fields := []any{"key", key, "count", 10, "id", "a"}
	wrong := w.redis.XAdd(ctx, &redis.XAddArgs{Stream: w.keys.Events(2), Values: fields})
	if wrong.Err() != nil {
		t.Fatal(wrong.Err())
	}
	w.append(api.Event{Key: good, Count: 9})
	w.start(r, nil)
	w.eventually("the event is a dead letter", func() (bool, string) {
		n := w.redis.XLen(ctx, w.keys.Dead(2)).Val()
		return n == 1 && w.pending() == 0, fmt.Sprint(n, w.pending())
	})
	letter := w.redis.XRange(ctx, w.keys.Dead(2), "-", "+").Val()[0].Values
	reason := fmt.Sprint(letter["reason"])
	if letter["event"] != wrong.Val() || !strings.Contains(reason, "partition 2") ||
		!strings.Contains(reason, "partition 1") {
		t.Errorf("the dead letter is %v", letter)
	}
	if body := fmt.Sprint(letter["body"]); !strings.Contains(body, key) || !strings.Contains(body, `"id":"a"`) {
		t.Errorf("the dead letter does not hold the event: %s", body)
	}
	w.eventually("the others are counted and published", func() (bool, string) {
		return w.used(good) == 10 && r.of(good) == toTheTop, fmt.Sprint(w.used(good), r.of(good))
	})
	if n := w.used(key); n != 0 || r.of(key) != "" {
		t.Errorf("the event counts %d, published %q", n, r.of(key))
	}
	w.append(api.Event{Key: key, Count: 3, ID: "a"}) // its id is not used up
	w.eventuallyUsed(key, 3)
	if misplaced, dead := w.letters("misplaced"), w.sample("dead_letters_total"); misplaced != 1 || dead != 1 {
		t.Errorf("misplaced %v, dead letters %v", misplaced, dead)
	}
}
