package consumers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// idsOf records the ids of the transitions that it receives: "state level" → ids.
type idsOf struct {
	mu  sync.Mutex
	ids map[string][]string
}

func (r *idsOf) Publish(_ context.Context, list []api.Transition, _ int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range list {
		what := fmt.Sprintf("%s %d", t.State, t.Level)
		r.ids[what] = append(r.ids[what], t.ID)
	}
	return nil
}

// After a failover the same transition can be written again, under another stream ID: it is still the same message,
// and JetStream drops the copy.
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

// attempts records how many of the transitions that it receives may have been sent before: "resent of how many". Its
// second Publish fails.
type attempts struct {
	mu   sync.Mutex
	seen []string
}

func (a *attempts) Publish(_ context.Context, list []api.Transition, resent int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, fmt.Sprintf("%d of %d", resent, len(list)))
	if len(a.seen) == 2 {
		return errors.New("no answer")
	}
	return nil
}

// When a relay takes over an outbox, the relay before it may have sent the waiting entries. Later only the entries
// that this relay has tried may have been sent. All others are sent for the first time.
func TestTheRelayKnowsWhatMayHaveBeenSent(t *testing.T) {
	each(t, func(t *testing.T, url string) {
		w, ctx := newWorld(t, url), context.Background()
		outbox := w.keys.Outbox(w.keys.Partition("user:1"))
		stop := w.start(&recorder{down: true}, nil)
		w.append(api.Event{Key: "user:1", Count: 5})
		waits := func(n int64) {
			w.eventually(fmt.Sprint(n, " transitions wait in the outbox"), func() (bool, string) {
				got := w.redis.XLen(ctx, outbox).Val()
				return got == n, fmt.Sprint(got)
			})
		}
		waits(1)
		stop()
		got := &attempts{}
		w.start(got, nil)
		waits(0)
		w.append(api.Event{Key: "user:1", Count: 5})
		w.eventually("what followed is published", func() (bool, string) {
			got.mu.Lock()
			defer got.mu.Unlock()
			return len(got.seen) == 3, fmt.Sprint(got.seen)
		})
		if want := []string{"1 of 1", "0 of 2", "2 of 2"}; !slices.Equal(got.seen, want) {
			t.Errorf("sent before: %q, expected %q", got.seen, want)
		}
	})
}

// The decision, and the alert of the same crossing, contain the penalty that begins with them; an earlier alert does
// not.
func TestDecisionsTellOfThePenalty(t *testing.T) {
	rule := &windows.Rule{Name: "api", Match: "*", Alerts: []int{50},
		Penalty: []time.Duration{time.Hour, 2 * time.Hour},
		Windows: []windows.Window{{Limit: 4, Per: time.Minute}}}
	each(t, func(t *testing.T, url string) {
		w, got := newWorld(t, url, rule), &recorder{}
		w.start(got, nil)
		w.append(api.Event{Key: "user:1", Count: 2})
		w.eventually("the first alert", func() (bool, string) { s := got.of("user:1"); return s != "", s })
		w.append(api.Event{Key: "user:1", Count: 9})
		w.eventually("the decision", func() (bool, string) {
			s := got.of("user:1")
			return strings.Contains(s, "throttled"), s
		})
		got.mu.Lock()
		defer got.mu.Unlock()
		for _, one := range got.all {
			if (one.Penalty != nil) != (one.Level == 100) {
				t.Errorf("%s %d%% tells of the penalty %+v", one.State, one.Level, one.Penalty)
			}
			if p := one.Penalty; p != nil && (p.Step != 1 || p.Of != 2 || p.UntilMs != one.UntilMs) {
				t.Errorf("%s %d%% until %d tells of the penalty %+v", one.State, one.Level, one.UntilMs, p)
			}
		}
	})
}
