package consumers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/overrides"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// A release comes due while all keys are examined again, after a change of the rules. It waits for one step of them,
// whichever keys that round has reached.
func TestDueReleasesGoFirst(t *testing.T) {
	const levelled = 10*sweepStep + 1
	ctx := t.Context()
	pool, rules, now := sweeping(t,
		&windows.Rule{Name: "long", Match: "long:*", Windows: []windows.Window{{Limit: 1, Per: time.Hour}}},
		&windows.Rule{Name: "short", Match: "short:*", Windows: []windows.Window{{Limit: 1, Per: 2 * time.Second}}})
	s, keys := pool.sweeper, pool.sweeper.Keys
	take := func(key string) {
		_, err := s.Counter.Check(ctx, requests(rules, key))
		testkit.Must(t, err)
	}
	for i := range levelled {
		take(fmt.Sprint("long:", i))
	}
	s.round.parts = keys.All()
	turns := 0
	for ; s.round.unfinished() && turns <= levelled; turns++ {
		take("short:1")
		now.Add(5000) // its window and its hold are over
		before := len(s.round.keys)
		_, err := s.turn(ctx)
		testkit.Must(t, err)
		if looked := before - len(s.round.keys); looked > sweepStep {
			t.Fatalf("one turn looked at %d keys again, expected %d at most", looked, sweepStep)
		}
		standing, err := s.Counter.Levelled(ctx, keys.Partition("short:1"))
		testkit.Must(t, err)
		if slices.Contains(standing, "short:1") {
			t.Fatalf("turn %d: a release that is due was left for the next one", turns)
		}
	}
	if turns < levelled/sweepStep || turns > levelled/sweepStep+2 {
		t.Errorf("the round took %d turns for %d keys in 2 partitions", turns, levelled)
	}
}

// sweeping returns a sweeper on a Redis whose clock the test moves.
func sweeping(t *testing.T, list ...*windows.Rule) (*Pool, *windows.Rules, *atomic.Int64) {
	t.Helper()
	now := &atomic.Int64{}
	now.Store(time.Now().UnixMilli())
	pool := poolOn(t, streamtest.AnyRedis(t), 2, func(c *Config) {
		c.Counter.Now, c.SweepEvery = now.Load, time.Millisecond
	}, list...)
	return pool, pool.all.Rules(), now
}

// poolOn returns a pool that does not run. Without rules, it has one that nothing depends on.
func poolOn(t *testing.T, c *redis.Client, partitions int, change func(*Config), list ...*windows.Rule) *Pool {
	t.Helper()
	keys := streamtest.Keys(t, partitions)
	if len(list) == 0 {
		list = []*windows.Rule{{Name: "api", Match: "*", Windows: []windows.Window{{Limit: 1, Per: time.Minute}}}}
	}
	rules, err := windows.NewRules(list)
	testkit.Must(t, err)
	config := Config{Redis: c, Blocking: c, Keys: keys, Counter: counters.New(c, keys), Publisher: &recorder{},
		Rules: windows.Fixed(rules).Rules, Metrics: NewMetrics(prometheus.NewRegistry()),
		Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&config)
	}
	pool, err := NewPool(config)
	testkit.Must(t, err)
	return pool
}

// operated returns the pool with overrides, and the overrides.
func operated(t *testing.T, pool *Pool) (*Pool, *overrides.All) {
	t.Helper()
	c, set := pool.sweeper.Config, pool.sweeper.Counter.NewOverrides(nil)
	c.Rules = windows.Under(set, c.Rules)
	pool, err := NewPool(c)
	testkit.Must(t, err)
	testkit.Must(t, set.Poll(t.Context()))
	return pool, set
}

// requests returns a request of one unit of each key.
func requests(rules *windows.Rules, keys ...string) (list []counters.Request) {
	for _, key := range keys {
		list = append(list, counters.Request{Plan: rules.Match(key), Key: key, Cost: 1})
	}
	return list
}

// A level that ends with a reservation ends at that time, though both are due in one pass.
func TestALevelEndsWithItsReservation(t *testing.T) {
	for range 8 { // the order of the records must not be luck
		ctx := t.Context()
		pool, rules, now := sweeping(t, &windows.Rule{Name: "r", Match: "*",
			Windows: []windows.Window{{Limit: 1, Per: 1500 * time.Millisecond, InFlight: true}}})
		c, held := pool.sweeper.Config, reservations.New(pool.sweeper.Counter)
		one := requests(rules, "k")
		_, err := held.Reserve(ctx, held.ID("a", one), 1500*time.Millisecond, "-", one)
		testkit.Must(t, err)
		ends := now.Add(1500)
		_, err = pool.sweeper.pass(ctx)
		testkit.Must(t, err)
		list, err := c.Redis.XRange(ctx, c.Keys.Outbox(c.Keys.Partition("k")), "-", "+").Result()
		testkit.Must(t, err)
		if last := list[len(list)-1].Values; last["state"] != "cleared" || last["until"] != fmt.Sprint(ends) {
			t.Errorf("%v, want it cleared at %d", last, ends)
		}
	}
}

// While no key has a level, the sweeper waits for the shortest time that a new level lasts.
func TestNothingStands(t *testing.T) {
	ctx := t.Context()
	rule := func(name string, hold time.Duration) *windows.Rule {
		return &windows.Rule{Name: name, Match: name + ":*", Hold: hold,
			Windows: []windows.Window{{Limit: 1, Per: time.Minute}}}
	}
	unlevelled := rule("unlevelled", 0)
	unlevelled.Unlevelled = true
	for want, list := range map[time.Duration][]*windows.Rule{
		300 * time.Millisecond: {rule("a", time.Hour), rule("b", 300*time.Millisecond), unlevelled},
		time.Second:            {rule("a", time.Hour)},
		time.Millisecond:       {rule("a", 0), rule("b", time.Hour)},
	} {
		pool, rules, _ := sweeping(t, list...)
		expect := func(want time.Duration) {
			t.Helper()
			if next, err := pool.sweeper.pass(ctx); err != nil || next != want {
				t.Errorf("%v, %v: want %v", next, err, want)
			}
		}
		expect(want)
		_, err := pool.sweeper.Counter.Check(ctx, requests(rules, "a:1"))
		testkit.Must(t, err)
		expect(time.Millisecond) // it can be refunded
	}
}

// A level that an old event raised ends in time, though it began long before the sweeper last looked.
func TestALevelOfAnOldEvent(t *testing.T) {
	ctx := t.Context()
	pool, _, now := sweeping(t, &windows.Rule{Name: "r", Match: "*", Hold: time.Minute,
		Windows: []windows.Window{{Limit: 1, Per: 10 * time.Minute}}})
	s, looked := pool.sweeper, make(chan struct{}, 1)
	s.maxIdleWait = time.Hour
	s.Counter.Now = func() int64 {
		signal(looked)
		return now.Load()
	}
	testkit.Background(t, s.run)
	<-looked

	p := s.Keys.Partition("k")
	ms := now.Load() - (10 * time.Minute).Milliseconds() + 1000
	id, err := s.Redis.XAdd(ctx, &redis.XAddArgs{Stream: s.Keys.Events(p), ID: fmt.Sprintf("%d-0", ms),
		Values: []any{"key", "k"}}).Result()
	testkit.Must(t, err)
	reader := eventlog.NewReader(s.Redis, s.Keys, s.Consumer, s.Keys.All())
	testkit.Must(t, reader.CreateGroups(ctx))
	batches, err := reader.Read(ctx, 1, -1)
	testkit.Must(t, err)
	testkit.Must(t, errors.Join(pool.worker.fold(ctx, batches...)...))
	now.Add(2000)
	streamtest.Eventually(t, "the release of "+id, func() (bool, string) {
		standing, err := s.Counter.Levelled(ctx, p)
		return err == nil && len(standing) == 0, fmt.Sprint(standing, err)
	})
}

// The end of an override may be near when its change is noticed.
func TestAnOverrideEndsSoon(t *testing.T) {
	pool, rules, _ := sweeping(t, &windows.Rule{Name: "r", Match: "*", Hold: time.Minute,
		Windows: []windows.Window{{Limit: 1, Per: time.Minute}}})
	pool, set := operated(t, pool)
	_, err := set.Set(t.Context(), rules.ValidateOverride, api.Override{Key: "k", Block: true}, 300*time.Millisecond)
	testkit.Must(t, err)
	select {
	case <-pool.sweeper.raised:
	default:
		t.Error("the sweeper was not told")
	}
}

// A foreign key in the place of one of our keys stops no other key, and neither does a refusal for another reason. The
// log names the key once. The sweeper waits before it tries again. It succeeds after the foreign key was deleted.
func TestAForeignKeyStopsNoOther(t *testing.T) {
	for what, c := range map[string]struct {
		name  func(k *stream.Keys, p int) string
		stops []string // fields of levels
	}{
		"the reservations of a key": {func(k *stream.Keys, p int) string { return k.Holds(p, "k") }, nil},
		"all reservations":          {(*stream.Keys).Reservations, []string{"\n\n{k}2", "\n\n{k}3"}},
		"all overrides":             {(*stream.Keys).Overrides, []string{"{k}4\noverride"}},
		"the audit":                 {(*stream.Keys).Audit, []string{"{k}4\noverride"}},
		"one reservation":           {nil, []string{"\n\n{k}2"}},
	} {
		t.Run(what, func(t *testing.T) {
			name, stops := c.name, c.stops
			ctx := t.Context()
			pool, rules, now := sweeping(t, &windows.Rule{Name: "r", Match: "*",
				Windows: []windows.Window{{Limit: 3, Per: 2 * time.Second}}})
			var log bytes.Buffer
			pool.sweeper.Log = slog.New(slog.NewTextHandler(&log, nil))
			pool, set := operated(t, pool)
			c, counter := pool.sweeper.Config, pool.sweeper.Counter
			counter.ReportCorrupt(nil, c.Log)
			p, held, told := c.Keys.Partition("k"), reservations.New(counter), "ERR odd"

			for word, keys := range map[string][]string{"a": {"k"}, "b": {"k", "{k}2"}, "c": {"{k}3"}} {
				one := requests(rules, keys...)
				_, err := held.Reserve(ctx, held.ID(word, one), time.Second, "-", one)
				testkit.Must(t, err)
			}
			_, err := set.Set(ctx, rules.ValidateOverride, api.Override{Key: "{k}4", Block: true}, time.Second)
			testkit.Must(t, err)
			odd := held.ID("b", requests(rules, "k"))
			if name != nil {
				told = name(c.Keys, p)
				testkit.Must(t, c.Redis.Del(ctx, told).Err())
				testkit.Must(t, c.Redis.Set(ctx, told, "not ours", 0).Err())
			} else {
				refuse := func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
					if streamtest.IsScript(cmd) && slices.Contains(cmd.Args(), any(odd)) {
						cmd.SetErr(streamtest.Refusal("ERR odd"))
						return cmd.Err()
					}
					return next(ctx, cmd)
				}
				c.Redis.AddHook(streamtest.OnCommand(refuse))
			}
			for range 3 {
				_, err = counter.Check(ctx, requests(rules, "{k}5"))
				testkit.Must(t, err)
			}

			levels := c.Keys.Levels(p)
			for range 3 {
				now.Add(5000)
				_, err = pool.sweeper.pass(ctx)
				testkit.Must(t, err)
				if due, err := counter.DueRecords(ctx, p, now.Load(), 9); err != nil || len(due) != 0 {
					t.Errorf("%q, %v: due again at once", due, err)
				}
			}
			for _, field := range []string{"{k}5", "\n\n{k}2", "\n\n{k}3", "{k}4\noverride"} {
				if stands := c.Redis.HExists(ctx, levels, field).Val(); stands != slices.Contains(stops, field) {
					t.Errorf("%q stands: %v", field, stands)
				}
			}
			if n := strings.Count(log.String(), told); n == 0 || n > 2 {
				t.Errorf("%s is in the log %d times:\n%s", told, n, &log)
			}

			testkit.Must(t, c.Redis.Del(ctx, told).Err())
			odd = ""
			now.Add(c.QuarantineFor.Milliseconds())
			_, err = pool.sweeper.pass(ctx)
			testkit.Must(t, err)
			due, err := c.Redis.ZRange(ctx, c.Keys.Due(p), 0, -1).Result()
			testkit.Must(t, err)
			for _, field := range due {
				if _, remembered := counters.ReservationOf(field); !remembered {
					t.Errorf("%q is still due", field)
				}
			}
		})
	}
}
