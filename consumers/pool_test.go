package consumers

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// After a clean stop there is no pending event, no unpublished transition, no consumer in the group, no lock, and no
// goroutine.
func TestACleanStopLeavesNothing(t *testing.T) {
	for _, how := range []string{"together", separately} { // not in parallel, because of the goroutines
		t.Run(how, func(t *testing.T) {
			ctx := context.Background()
			w, r := newWorld(t), &recorder{}
			before := goleak.IgnoreCurrent()
			stop := w.start(r, nil)
			for range 50 {
				for i := range 20 {
					w.append(api.Event{Key: fmt.Sprintf("user:%d", i), Count: 1}, api.Event{Key: "nobody", Count: 1})
				}
			}
			stop()
			stop()
			if n := w.pending(); n != 0 {
				t.Errorf("%d events pending", n)
			}
			for p := range w.keys.Partitions {
				if n := w.redis.XLen(ctx, w.keys.Outbox(p)).Val(); n != 0 {
					t.Errorf("%d transitions in the outbox of %d", n, p)
				}
				if n := w.redis.Exists(ctx, w.keys.Relay(p)).Val(); n != 0 {
					t.Errorf("the lock of %d is still held", p)
				}
				if c, err := w.redis.XInfoConsumers(ctx, w.keys.Events(p), eventlog.Group).Result(); err != nil ||
					len(c) != 0 {
					t.Errorf("consumers of %d: %v, %v", p, c, err)
				}
			}
			goleak.VerifyNone(t, before, goleak.IgnoreTopFunction("internal/poll.runtime_pollWait"),
				goleak.IgnoreAnyFunction("github.com/alicebob/miniredis/v2/server.(*Server).servePeer"),
				goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).queuedNewConn.func2"))
			// Events that were not read before the stop are there for the next worker.
			w.start(r, nil)
			for i := range 20 {
				w.eventuallyUsed(fmt.Sprintf("user:%d", i), 50)
				w.told(r, fmt.Sprintf("user:%d", i), toTheTop)
			}
			w.shows("events_folded_total", 1000)
			w.shows("events_unmatched_total", 1000)
		})
	}
}

// An event that makes the script fail, for any reason, is isolated and becomes the only dead letter: the other events
// of its batch are counted, and those of the other partitions of its call.
func TestARefusedEventIsBuriedAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 20 {
		w.append(api.Event{Key: fmt.Sprintf("user:%d", i), Count: 1})
	}
	counter := counters.New(w.work, w.keys)
	counter.Now = func() int64 { // the script refuses everything until the first is a dead letter
		if w.sample("dead_letters_total") == 0 {
			return -1
		}
		return time.Now().UnixMilli()
	}
	// Nothing is claimed: the worker handles all events itself.
	w.start(&recorder{}, func(c *Config) { c.Counter, c.MinIdle = counter, time.Minute })
	w.eventually("the one is a dead letter, the others are counted", func() (bool, string) {
		sum := int64(0)
		for i := range 20 {
			sum += w.used(fmt.Sprintf("user:%d", i))
		}
		return sum == 19 && w.sample("dead_letters_total") == 1 && w.pending() == 0,
			fmt.Sprint(sum, w.sample("dead_letters_total"), w.pending())
	})
	var letters []redis.XMessage
	for p := range w.keys.Partitions {
		letters = append(letters, w.dead(p)...)
	}
	if len(letters) != 1 || !strings.Contains(letters[0].Values["reason"].(string), "ARGV[1]") ||
		!strings.Contains(letters[0].Values["body"].(string), "user:") {
		t.Fatalf("%v", letters)
	}
}

// After a read of several events there is a pause, after a read of a single event there is none.
func TestReadsPauseUnderLoad(t *testing.T) {
	t.Parallel()
	w, pauses := newWorld(t), make(chan time.Duration, 10)
	w.append(api.Event{Key: "user:0", Count: 1}, api.Event{Key: "user:1", Count: 1}, api.Event{Key: "user:2", Count: 1})
	w.start(&recorder{}, func(c *Config) {
		c.ReadPause = time.Millisecond
		c.readPause = func(_ context.Context, d time.Duration) bool { pauses <- d; return true }
	})
	w.eventually("there is a pause", func() (bool, string) { return len(pauses) > 0, "none" })
	if d := <-pauses; d != 500*time.Microsecond {
		t.Errorf("a pause of %v, expected 500µs", d)
	}
	for n := range int64(3) {
		w.append(api.Event{Key: "user:1", Count: 1})
		w.eventuallyUsed("user:1", n+2)
	}
	if n := len(pauses); n != 0 {
		t.Errorf("%d pauses, expected none after a lone event", n)
	}
}

// While Redis is busy, a count of the throttled keys takes long. The next count comes soon all the same.
func TestThrottledKeysAreCountedAgainSoon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var busy atomic.Bool
	busy.Store(true)
	w.work.AddHook(streamtest.OnCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "hscan" && busy.Load() {
			time.Sleep(300 * time.Millisecond)
		}
		return next(ctx, cmd)
	}))
	w.append(api.Event{Key: "user:1", Count: 10})
	w.start(&recorder{}, nil)
	w.shows("throttled_keys", 1)
	busy.Store(false)
	began := time.Now()
	testkit.Must(t, w.redis.Del(t.Context(), w.keys.Levels(w.keys.Partition("user:1"))).Err())
	w.shows("throttled_keys", 0)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("counted again after %v, want a moment", took)
	}
}

// The decision, and the alert of the same crossing, contain the penalty that begins with them and the newest values; an
// earlier alert contains no penalty.
func TestDecisionsTellOfThePenaltyAndTheValues(t *testing.T) {
	rule := &windows.Rule{Name: "api", Match: "*", Alerts: []int{50},
		Penalty: []time.Duration{time.Hour, 2 * time.Hour},
		Windows: []windows.Window{{Limit: 2, Per: time.Minute, Distinct: "user", PublishValues: 5}}}
	t.Parallel()
	w, got := newWorld(t, rule), &recorder{}
	w.start(got, nil)
	w.append(api.Event{Key: "user:1", Count: 1, Values: map[string]string{"user": "alice"}})
	w.told(got, "user:1", "raised 50")
	w.append(api.Event{Key: "user:1", Count: 1, Values: map[string]string{"user": "bob"}})
	w.told(got, "user:1", toTheTop)
	got.mu.Lock()
	defer got.mu.Unlock()
	for _, one := range got.all {
		if (one.Penalty != nil) != (one.Level == 100) {
			t.Errorf("%s %d%% tells of the penalty %+v", one.State, one.Level, one.Penalty)
		}
		if p := one.Penalty; p != nil && (p.Step != 1 || p.Of != 2 || p.UntilMs != one.UntilMs) {
			t.Errorf("%s %d%% until %d tells of the penalty %+v", one.State, one.Level, one.UntilMs, p)
		}
		if list := fmt.Sprint(one.Values); one.State == api.StateThrottled && list != "&map[user:[bob alice]]" {
			t.Errorf("the decision has the values %s", list)
		}
	}
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
	pool, _ := w.run(r, func(c *Config) { c.onRescan = func() { <-gate } })
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
