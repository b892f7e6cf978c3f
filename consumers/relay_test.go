package consumers_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
)

// idsOf notes the ids of what it is given: "state level" → each.
type idsOf struct {
	mu  sync.Mutex
	ids map[string][]string
}

func (r *idsOf) Publish(_ context.Context, list []api.Transition) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range list {
		what := fmt.Sprintf("%s %d", t.State, t.Level)
		r.ids[what] = append(r.ids[what], t.ID)
	}
	return nil
}

// After a failover the same transition can be written again, under another stream
// ID: it is the same message all the same, and JetStream drops the copy.
func TestATransitionWrittenAgainKeepsItsID(t *testing.T) {
	each(t, func(t *testing.T, url string) {
		w, ctx := newWorld(t, url), context.Background()
		outbox := w.keys.Outbox(w.keys.Partition("user:1"))
		down := &recorder{down: true}
		stop := w.start(down, nil)
		w.append(api.Event{Key: "user:1", Count: 10})
		var first []redis.XMessage
		w.eventually("the transitions wait in the outbox", func() (bool, string) {
			first = w.redis.XRange(ctx, outbox, "-", "+").Val()
			return len(first) == 3, fmt.Sprint(first)
		})
		stop()
		for _, e := range first {
			if err := w.redis.XAdd(ctx, &redis.XAddArgs{Stream: outbox, Values: e.Values}).Err(); err != nil {
				t.Fatal(err)
			}
		}
		got := &idsOf{ids: map[string][]string{}}
		w.start(got, nil)
		w.eventually("the outbox is empty", func() (bool, string) {
			n := w.redis.XLen(ctx, outbox).Val()
			return n == 0, fmt.Sprint(n)
		})
		got.mu.Lock()
		defer got.mu.Unlock()
		seen := map[string]string{}
		for _, what := range []string{"raised 50", "raised 100", "throttled 100"} {
			ids := got.ids[what]
			if len(ids) != 2 || ids[0] != ids[1] {
				t.Errorf("%s was published as %q, expected twice the same id", what, ids)
				continue
			}
			if other := seen[ids[0]]; other != "" {
				t.Errorf("%s and %s share the id %s", what, other, ids[0])
			}
			seen[ids[0]] = what
		}
	})
}
