package counters_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// clock is the time of a test, in ms.
type clock struct{ ms int64 }

func (c *clock) now() int64 { return c.ms }

// store is one implementation of the counter, with the clock of the test.
type store struct {
	counters.Counter
	t     testing.TB
	clock *clock
	// fold counts events that were appended at their times.
	fold func(t failer, plan *windows.Plan, events ...counters.Event)
	// All other fields except rules are nil in process. redis is the client of the
	// test. The Counter above is that of serve, and store is that of workers. On the
	// shared Redis, each has its user.
	redis  redis.UniversalClient
	reader redis.UniversalClient
	keys   *stream.Keys
	store  *counters.Redis
	serve  *counters.Redis
	held   *reservations.Store // of serve
	rules  *windows.Rules
	// separately folds each partition with a separate call, as on a Cluster.
	separately bool

	ids      map[string]bool  // of the transitions that were written
	versions map[string]int64 // rule and key → the version of their last transition
}

// planOf returns the plan with only the first rule.
func planOf(r *windows.Rules) *windows.Plan { return r.PlanOf(r.List()[0]) }

// useClock sets the clock of serve and of workers, nil for the server's clock.
func (s *store) useClock(now func() int64) { s.serve.Now, s.store.Now = now, now }

// learn sets the rules of serve and of workers.
func (s *store) learn() error {
	return errors.Join(s.store.RecordRules(context.Background(), s.rules),
		s.serve.RecordRules(context.Background(), s.rules))
}

// failer is a test or a property.
type failer interface {
	Helper()
	Fatal(args ...any)
}

const start = 1_700_000_000_000 // ms; far from zero, as real times are

// eachRedis runs a test on the shared real Redis. If there is none, it runs the test on an embedded one. CI runs all
// tests with servers and without, so it covers both.
func eachRedis(t *testing.T, rules *windows.Rules, test func(t *testing.T, s *store)) {
	t.Helper()
	real := streamtest.HasRedis(t)
	t.Run("redis", func(t *testing.T) { test(t, securedStore(t, rules)) }) // it is skipped if there is no real Redis
	if !real {
		t.Run("embedded", func(t *testing.T) {
			test(t, redisStore(t, "redis://"+streamtest.EmbeddedRedis(t).Addr(), rules))
		})
	}
}

// underEachAlgorithm runs a test of one rule under each algorithm, on each Redis.
func underEachAlgorithm(t *testing.T, rule windows.Rule, test func(t *testing.T, s *store)) {
	t.Helper()
	rule.Name, rule.Match = "a", "*"
	for _, a := range windows.Algorithms {
		of := rule
		of.Algorithm = a
		t.Run(a, func(t *testing.T) { eachRedis(t, rulesOf(t, &of), test) })
	}
}

func localStore(t testing.TB) *store {
	c := &clock{start}
	l := counters.NewLocal(0, c.now)
	return &store{Counter: l, t: t, clock: c, fold: func(_ failer, plan *windows.Plan,
		events ...counters.Event) {
		for _, e := range events {
			l.Add(plan, e.Key, e.Ms, e.Count)
		}
	}}
}

func redisStore(t testing.TB, url string, rules *windows.Rules) *store {
	t.Helper()
	c := streamtest.Connect(t, url)
	return newStore(t, c, c, c, rules)
}

// securedStore is on the shared Redis, under the users that are shipped.
func securedStore(t testing.TB, rules *windows.Rules) *store {
	t.Helper()
	return newStore(t, streamtest.Connect(t, streamtest.Redis(t)), streamtest.Connect(t,
		streamtest.RedisAs(t, "serve")),
		streamtest.Connect(t, streamtest.RedisAs(t, "work")), rules)
}

// newStore takes the clients of the test, of serve and of workers.
func newStore(t testing.TB, client, serve, work redis.UniversalClient, rules *windows.Rules) *store {
	t.Helper()
	keys, c := streamtest.Keys(t, 4), &clock{start}
	s := &store{t: t, clock: c, redis: client, reader: work, keys: keys, serve: counters.New(serve, keys),
		store: counters.New(work, keys), rules: rules,
		ids: map[string]bool{}, versions: map[string]int64{}}
	s.Counter, s.held = s.serve, reservations.New(s.serve)
	s.useClock(c.now)
	_, cluster := work.(*redis.ClusterClient)
	s.separately = cluster
	s.fold = func(t failer, _ *windows.Plan, events ...counters.Event) {
		t.Helper()
		var batches []counters.Batch
		for p, list := range s.append(t, events...) {
			batches = append(batches, counters.Batch{Partition: p, Events: list})
		}
		s.foldBatches(t, batches)
	}
	return s
}

// foldBatches folds batches of several partitions, with one call or with one for each. It also returns how many events
// no rule matches.
func (s *store) foldBatches(t failer, batches []counters.Batch) (sum counters.Folded, unmatched int) {
	t.Helper()
	for calls := batches; len(calls) > 0; {
		call := calls
		if s.separately {
			call = calls[:1]
		}
		calls = calls[len(call):]
		f, without, err := s.store.Fold(context.Background(), s.rules, call...)
		testkit.Must(t, err)
		for _, left := range without {
			unmatched += len(left.Unmatched)
		}
		sum.Folded += f.Folded
		sum.Late += f.Late
		sum.AlreadyCounted += f.AlreadyCounted
		sum.Duplicate += f.Duplicate
		sum.Merged += f.Merged
		sum.Transitions += f.Transitions
	}
	return sum, unmatched
}

// add stores events at their times.
func (s *store) add(events ...counters.Event) {
	s.t.Helper()
	ctx := context.Background()
	_, err := s.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, e := range events {
			values := []any{"key", e.Key, "count", e.Count}
			for field, value := range e.Fields {
				values = append(values, field, value)
			}
			p.XAdd(ctx, &redis.XAddArgs{Stream: s.keys.Events(s.keys.Partition(e.Key)), ID: fmt.Sprintf("%d-*", e.Ms),
				Values: values})
		}
		return nil
	})
	testkit.Must(s.t, err)
}

// append stores events at their times and reads them as a worker does. It
// returns partition → the events that were read.
func (s *store) append(t failer, events ...counters.Event) map[int][]counters.Event {
	t.Helper()
	s.add(events...)
	read := map[int][]counters.Event{}
	for _, b := range s.read("test") {
		read[b.Partition] = eventsOf(t, b)
	}
	return read
}

// read reads all new events of every partition, as a worker does.
func (s *store) read(worker string) (all []eventlog.Batch) {
	s.t.Helper()
	ctx := context.Background()
	for _, parts := range eventlog.Shards(s.reader, s.keys.All()) {
		reader := eventlog.NewReader(s.reader, s.keys, worker, parts)
		testkit.Must(s.t, reader.CreateGroups(ctx))
		batches, err := reader.Read(ctx, 10_000, -1)
		testkit.Must(s.t, err)
		all = append(all, batches...)
	}
	return all
}

// eventsOf returns the events that were read of a partition, as a worker folds them.
func eventsOf(t failer, b eventlog.Batch) (events []counters.Event) {
	t.Helper()
	events = make([]counters.Event, 0, len(b.Messages))
	for _, m := range b.Messages {
		e, err := m.Decode()
		testkit.Must(t, err)
		events = append(events, counters.Event{ID: m.ID, Ms: m.Ms(), Key: e.Key, Count: e.Count, ProducerID: e.ID,
			Fields: m.Values})
	}
	return events
}

// drain reads the outboxes and empties them. Each transition must have a unique
// id, and a greater version than the earlier ones of its rule and key.
func (s *store) drain(t testing.TB) (transitions []map[string]any) {
	t.Helper()
	ctx := context.Background()
	for p := range s.keys.Partitions {
		list, err := s.redis.XRange(ctx, s.keys.Outbox(p), "-", "+").Result()
		testkit.Must(t, err)
		for _, m := range list {
			s.isNew(t, m.Values)
			transitions = append(transitions, m.Values)
		}
		testkit.Must(t, s.redis.Del(ctx, s.keys.Outbox(p)).Err())
	}
	return transitions
}

// transitions drains the outboxes, and returns a line for each transition.
func (s *store) transitions(t testing.TB) []string {
	t.Helper()
	out := []string{}
	for _, v := range s.drain(t) {
		text := fmt.Sprintf("%s %s/%s %s%% used %s", v["state"], v["rule"], v["key"], v["level"], v["used"])
		if v["flags"] != "" {
			text += " " + v["flags"].(string)
		}
		out = append(out, text)
	}
	return out
}

func (s *store) isNew(t testing.TB, v map[string]any) {
	t.Helper()
	text := func(name string) string { return v[name].(string) }
	number := func(name string) int64 {
		n, err := strconv.ParseInt(text(name), 10, 64)
		testkit.Must(t, err)
		return n
	}
	tr := api.Transition{Rule: text("rule"), Key: text("key"), State: api.State(text("state")),
		Level:    int(number("level")),
		WindowMs: number("window"), Version: number("version"), UntilMs: number("until")}
	id := tr.MessageID("sc")
	if s.ids[id] {
		t.Fatalf("two transitions have the id %s", id)
	}
	if tr.Version <= s.versions[tr.Rule+" "+tr.Key] {
		t.Fatalf("%s has version %d, the transition before it %d", id, tr.Version, s.versions[tr.Rule+" "+tr.Key])
	}
	if number("limit") < 1 {
		t.Fatalf("%s has the limit %d", id, number("limit"))
	}
	s.ids[id], s.versions[tr.Rule+" "+tr.Key] = true, tr.Version
}

func (s *store) sweep(t failer) {
	t.Helper()
	for p := range s.keys.Partitions {
		keys, err := s.store.DueRecords(context.Background(), p, s.clock.ms, 1000)
		testkit.Must(t, err)
		if _, _, err := reservations.New(s.store).Sweep(context.Background(), p, s.rules, keys); err != nil {
			t.Fatal(err)
		}
	}
}

func rulesOf(t failer, list ...*windows.Rule) *windows.Rules {
	t.Helper()
	r, err := windows.NewRules(list)
	testkit.Must(t, err)
	return r
}

// parsed returns the rules of a file.
func parsed(t failer, yaml string) *windows.Rules {
	t.Helper()
	rules, err := windows.Parse("rules.yml", []byte(yaml))
	testkit.Must(t, err)
	return rules
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
