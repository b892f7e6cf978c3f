package consumers_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/consumers"
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
	w.start(&recorder{}, func(c *consumers.Config) { c.Counter, c.MinIdle = counter, time.Minute })
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

// Redis loses its scripts, the event streams, and all of its memory: work goes on. All parts of a worker meet the
// outage: its beginning and its end are logged once.
func TestWorkGoesOnAfterRedisForgets(t *testing.T) {
	t.Parallel()
	own := streamtest.OwnRedis(t)
	ctx := context.Background()
	w, log := newWorldOf(t, own.URL(), 4), &testkit.Log{}
	stop := w.start(&recorder{}, func(c *consumers.Config) { c.Log = slog.New(slog.NewTextHandler(log, nil)) })
	said := func(what string) {
		w.eventually(what, func() (bool, string) { return strings.Contains(log.String(), what), log.String() })
	}
	w.append(api.Event{Key: "user:1", Count: 1})
	w.eventuallyUsed("user:1", 1)
	testkit.Must(t, w.redis.ScriptFlush(ctx).Err())
	w.append(api.Event{Key: "user:1", Count: 1})
	w.eventuallyUsed("user:1", 2)
	for p := range w.keys.Partitions { // as when they expire: the group is deleted too
		testkit.Must(t, w.redis.Del(ctx, w.keys.Events(p)).Err())
	}
	w.append(api.Event{Key: "user:1", Count: 1})
	w.eventuallyUsed("user:1", 3)
	before := len(log.String())
	own.Kill()
	said("Redis does not answer")
	own.Start() // with an empty memory
	said("Redis answers again")
	w.eventually("an event is appended", func() (bool, string) {
		out := w.log.Append(ctx, []api.Event{{Key: "user:1", Count: 5}})
		return out.Err == nil, fmt.Sprint(out.Err)
	})
	w.eventuallyUsed("user:1", 5)
	stop()
	if outage := log.String()[before:]; strings.Count(outage, "\n") != 2 {
		t.Errorf("want two lines:\n%s", outage)
	}
}

// While the publisher fails, transitions wait, and later they are published in order. After a failover the same
// transition can be written again, under another stream ID: it is still the same message, and JetStream drops the copy.
func TestTransitionsWaitInTheOutbox(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorld(t, &windows.Rule{Name: "api", Match: "user:*",
		Windows: []windows.Window{{Limit: 2, Per: time.Hour}}, Hold: time.Millisecond})
	r, ahead, p := &recorder{down: true}, w.moveClock(), w.keys.Partition("user:1")
	outbox := w.keys.Outbox(p)
	stop := w.start(r, stopAtOnce)
	const round = "raised 100, throttled 100, released 100, cleared 100"
	for i := range int64(3) {
		testkit.Must(t, w.redis.XAdd(ctx, &redis.XAddArgs{Stream: w.keys.Events(p),
			ID: fmt.Sprintf("%d-*", w.counter.Now()), Values: []any{"key", "user:1", "count", 2}}).Err())
		w.waiting(p, 4*i+2)
		ahead.Add(2 * time.Hour.Milliseconds())
		w.waiting(p, 4*i+4)
	}
	w.shows("outbox_depth", 12)
	stop()
	for _, e := range w.redis.XRange(ctx, outbox, "-", "+").Val() {
		testkit.Must(t, w.redis.XAdd(ctx, &redis.XAddArgs{Stream: outbox, Values: e.Values}).Err())
	}
	if got := r.of("user:1"); got != "" {
		t.Fatalf("published while down: %s", got)
	}
	r.set(false)
	w.start(r, nil)
	w.shows("outbox_depth", 0)
	w.shows("outbox_oldest_seconds", 0)
	w.told(r, "user:1", round+", "+round+", "+round)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.copies < 12 { // a relay that was late for its lock publishes more
		t.Errorf("%d messages came twice, expected 12", r.copies)
	}
}

// After a read of several events there is a pause, after a read of a single event there is none.
func TestReadsPauseUnderLoad(t *testing.T) {
	t.Parallel()
	w, pauses := newWorld(t), make(chan time.Duration, 10)
	w.append(api.Event{Key: "user:0", Count: 1}, api.Event{Key: "user:1", Count: 1}, api.Event{Key: "user:2", Count: 1})
	w.start(&recorder{}, func(c *consumers.Config) {
		c.ReadPause = time.Millisecond
		c.OnReadPause(func(d time.Duration) { pauses <- d })
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

// Redis has no memory left: stored events are still folded, levels end, and the relay empties the outbox, which frees
// memory.
func TestWorkGoesOnWithoutMemory(t *testing.T) {
	t.Parallel()
	own := streamtest.OwnRedis(t, "--maxmemory-policy", "noeviction")
	ctx := context.Background()
	w := newWorldOf(t, own.URL(), 4, &windows.Rule{Name: "api", Match: "user:*",
		Windows: []windows.Window{{Limit: 2, Per: time.Hour}}, Hold: time.Millisecond})
	ahead := w.moveClock()
	w.append(api.Event{Key: "user:1", Count: 2})
	testkit.Must(t, w.redis.ConfigSet(ctx, "maxmemory", "1").Err())
	if out := w.log.Append(ctx, []api.Event{{Key: "user:1", Count: 1}}); out.Err == nil || len(out.Refused) != 1 {
		t.Fatalf("an append without memory: %+v", out)
	}
	// The group exists already, as in a Redis that became full while it worked.
	testkit.Must(t, w.redis.ConfigSet(ctx, "maxmemory", "0").Err())
	r := &recorder{}
	testkit.Must(t, eventlog.NewReader(w.redis, w.keys, "x", w.keys.All()).CreateGroups(ctx))
	testkit.Must(t, w.redis.ConfigSet(ctx, "maxmemory", "1").Err())
	w.start(r, nil)
	w.told(r, "user:1", "raised 100, throttled 100")
	ahead.Add(2 * time.Hour.Milliseconds())
	w.told(r, "user:1", "raised 100, throttled 100, released 100, cleared 100")
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
