package consumers_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/overrides"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// operated returns a world with a pool that follows overrides, and the overrides that another process sets. The
// overrides in `before` exist when the pool starts.
func operated(t *testing.T, before ...api.Override) (w *world, other *overrides.All, r *recorder) {
	t.Helper()
	w, r = newWorld(t), &recorder{}
	w.counter.Now = nil
	other = counters.New(w.redis, w.keys).NewOverrides(nil)
	testkit.Must(t, other.Poll(t.Context()))
	for _, o := range before {
		_, err := other.Set(t.Context(), w.rules.ValidateOverride, o, 0)
		testkit.Must(t, err)
	}
	mine := w.counter.NewOverrides(nil)
	testkit.Must(t, mine.Poll(t.Context()))
	w.start(r, func(c *consumers.Config) { c.Rules = windows.Under(mine, c.Rules) })
	go mine.Run(t.Context())
	return w, other, r
}

func (w *world) eventuallyPublished(r *recorder, key string, rule string, state api.State) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s is %s by %s", key, state, rule), func() (bool, string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		last := api.Transition{}
		for _, one := range r.all {
			if one.Key == key && one.Rule == rule && one.IsThrottle() {
				last = one
			}
		}
		return last.State == state, fmt.Sprintf("%+v", last)
	})
}

// However an event of a key that a pattern blocks is folded, its decision is published. The block is older than the
// pool, so nothing else examines the key. Decisions for keys with a count are published when a pattern begins to block
// them. All of them are released when the block is cleared.
func TestEventsOfABlockedPatternArePublished(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		w, other, r := operated(t, api.Override{Pattern: "user:a*", Block: true})
		w.append(api.Event{Key: "user:a1", Count: 1}) // alone in its read
		w.eventuallyPublished(r, "user:a1", "override", api.StateThrottled)
		w.append(api.Event{Key: "user:a2", Count: 1}, api.Event{Key: "user:a3", Count: 1},
			api.Event{Key: "user:b", Count: 1}) // of several partitions
		w.eventuallyPublished(r, "user:a2", "override", api.StateThrottled)
		w.eventuallyPublished(r, "user:a3", "override", api.StateThrottled)
		w.readAndDie("user:a4")
		w.eventuallyPublished(r, "user:a4", "override", api.StateThrottled)
		w.eventuallyUsed("user:b", 1)
		if got := r.of("user:b"); got != "" {
			t.Errorf("user:b, which the pattern does not fit: %s", got)
		}
		_, err := other.Set(t.Context(), w.rules.ValidateOverride, api.Override{Pattern: "user:b*", Block: true}, 0)
		testkit.Must(t, err)
		w.eventuallyPublished(r, "user:b", "override", api.StateThrottled)
		for key, pattern := range map[string]string{"user:a1": "user:a*", "user:b": "user:b*"} {
			_, err := other.Clear(t.Context(), "", pattern, "", "")
			testkit.Must(t, err)
			w.eventuallyPublished(r, key, "override", api.StateReleased)
		}
	})
}

// readAndDie appends an event that another worker reads and never folds.
func (w *world) readAndDie(key string) {
	w.t.Helper()
	ctx, events := w.t.Context(), w.keys.Events(w.keys.Partition(key))
	_, err := w.redis.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.XAdd(ctx, &redis.XAddArgs{Stream: events, Values: []any{"key", key}})
		tx.XReadGroup(ctx, &redis.XReadGroupArgs{Group: eventlog.Group, Consumer: "dead",
			Streams: []string{events, ">"}, Block: -1})
		return nil
	})
	testkit.Must(w.t, err)
}

// Overrides that another process sets reach decisions: a lower limit throttles a key that was below its own limit,
// and the end of the override releases it.
func TestOverridesReachDecisions(t *testing.T) {
	t.Parallel()
	w, other, r := operated(t)
	w.append(api.Event{Key: "user:1", Count: 4})
	w.eventuallyUsed("user:1", 4)
	set := api.Override{Key: "user:1", Windows: []api.OverrideWindow{{Limit: 3, Per: "1h"}}}
	_, err := other.Set(t.Context(), w.rules.ValidateOverride, set, 0)
	testkit.Must(t, err)
	w.eventuallyPublished(r, "user:1", "api", api.StateThrottled)
	_, err = other.Set(t.Context(), w.rules.ValidateOverride, set, 2*time.Second)
	testkit.Must(t, err)
	w.eventuallyPublished(r, "user:1", "api", api.StateReleased)
	w.eventually("the override is removed", func() (bool, string) {
		n := w.redis.HLen(t.Context(), w.keys.Overrides(w.keys.Partition("user:1"))).Val()
		return n == 1, fmt.Sprint(n, " fields") // the version stays
	})
}

// Rules are changed and changed back before the walk over all keys begins. Meanwhile the keys were released, so they
// have no level, and the worker finds them by their counters. There are more of them than one step takes. Subscribers
// receive at once what checks answer. (The story rules_change.txt of internal/counters has each kind of change.)
func TestReloadsReachSubscribers(t *testing.T) {
	limited := func(limit int64) *windows.Rules {
		rules, err := windows.NewRules([]*windows.Rule{{Name: "api", Match: "user:*",
			Windows: []windows.Window{{Limit: limit, Per: time.Hour}}}})
		testkit.Must(t, err)
		return rules
	}
	t.Parallel()
	w, r, gate := newWorld(t), &recorder{}, make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	w.setRules(limited(10))
	pool, _ := w.run(r, func(c *consumers.Config) { c.OnRescan(func() { <-gate }) })
	t.Cleanup(open)
	const keys = 120 // all in one partition
	var events []api.Event
	for i := range keys {
		events = append(events, api.Event{Key: fmt.Sprintf("user:%d{x}", i), Count: 10})
	}
	told := func(want string) {
		t.Helper()
		for i := range keys {
			w.told(r, fmt.Sprintf("user:%d{x}", i), want)
		}
	}
	w.append(events...)
	told("raised 100, throttled 100")
	w.setRules(limited(20))
	pool.Recheck()
	told("raised 100, throttled 100, released 100, cleared 100")
	w.setRules(limited(10))
	pool.Recheck()
	open()
	told("raised 100, throttled 100, released 100, cleared 100, raised 100, throttled 100")
}
