package consumers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// world is one prefix with rules, in which pools of consumers start and stop.
type world struct {
	t        testing.TB
	url      string                // what pools connect to: on the shared Redis as the user work
	redis    redis.UniversalClient // used by the test itself
	work     redis.UniversalClient // used by the pools
	keys     *stream.Keys
	rules    *windows.Rules
	counter  *counters.Redis
	log      *stream.Log
	registry *prometheus.Registry
	metrics  *Metrics
	changed  atomic.Pointer[windows.Rules] // nil until setRules
}

// newWorld returns a world of four partitions on a real Redis, or on an embedded one if there is no real one.
func newWorld(t testing.TB, rules ...*windows.Rule) *world {
	t.Helper()
	return newWorldOf(t, anyRedis(t), 4, rules...)
}

func anyRedis(t testing.TB) string {
	t.Helper()
	if streamtest.HasRedis(t) {
		return streamtest.Redis(t)
	}
	return "redis://" + streamtest.EmbeddedRedis(t).Addr()
}

func newWorldOf(t testing.TB, url string, partitions int, rules ...*windows.Rule) *world {
	t.Helper()
	if len(rules) == 0 {
		rules = []*windows.Rule{{Name: "api", Match: "user:*", Windows: []windows.Window{{Limit: 10, Per: time.Hour}},
			Alerts: []int{50}}}
	}
	w := &world{t: t, url: url, redis: streamtest.Connect(t, url), registry: prometheus.NewRegistry()}
	if streamtest.HasRedis(t) && url == streamtest.Redis(t) {
		w.url = streamtest.RedisAs(t, "work")
	}
	w.work = streamtest.Connect(t, w.url)
	var err error
	w.rules, err = windows.NewRules(rules)
	testkit.Must(t, err)
	w.keys = streamtest.Keys(t, partitions)
	w.counter = counters.New(w.work, w.keys)
	w.counter.ReportCorrupt(w.registry, slog.New(slog.DiscardHandler))
	w.log, err = stream.NewLog(w.redis, w.keys, time.Hour)
	testkit.Must(t, err)
	w.metrics = NewMetrics(w.registry)
	return w
}

// separately is in the name of a test whose pools make a separate script call for each partition.
const separately = "separately"

// setRules changes the rules of running pools.
func (w *world) setRules(r *windows.Rules) { w.changed.Store(r) }

func (w *world) present() *windows.Rules {
	if r := w.changed.Load(); r != nil {
		return r
	}
	return w.rules
}

// start runs a pool and returns a function that stops it cleanly; it can be called twice.
func (w *world) start(p Publisher, change func(*Config)) (stop func()) {
	w.t.Helper()
	_, stop = w.run(p, change)
	return stop
}

// stopAtOnce is for pools whose publisher fails: a stop would wait for it. A fifth of this time is for the answer about
// the locks. Without it, the next pool never gets them: on the embedded server keys end only by the test's clock.
func stopAtOnce(c *Config) { c.DrainTimeout = time.Second }

func (w *world) run(p Publisher, change func(*Config)) (*Pool, func()) {
	w.t.Helper()
	c := Config{
		Redis: w.work, Blocking: streamtest.Connect(w.t, w.url), Keys: w.keys, Counter: w.counter, Rules: w.present,
		Publisher: p, Metrics: w.metrics, Block: 50 * time.Millisecond, MinIdle: 200 * time.Millisecond,
		LockTTL:    300 * time.Millisecond,
		SweepEvery: 5 * time.Millisecond, GaugesEvery: 20 * time.Millisecond, QuarantineFor: 50 * time.Millisecond,
		Log: slog.New(slog.DiscardHandler),
	}
	c.separately = strings.HasSuffix(w.t.Name(), separately)
	if change != nil {
		change(&c)
	}
	pool, err := NewPool(c)
	testkit.Must(w.t, err)
	return pool, testkit.Background(w.t, pool.Run)
}

func (w *world) append(events ...api.Event) {
	w.t.Helper()
	if out := w.log.Append(context.Background(), events); out.Err != nil {
		w.t.Fatal(out.Err)
	}
}

func (w *world) used(key string) int64 {
	w.t.Helper()
	st, err := w.counter.Peek(context.Background(), w.rules.Match(key), key)
	testkit.Must(w.t, err)
	return st.Windows[0].Used
}

func (w *world) eventually(what string, check func() (bool, string)) {
	w.t.Helper()
	streamtest.Eventually(w.t, what, check)
}

func (w *world) eventuallyUsed(key string, want int64) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s has used %d", key, want), func() (bool, string) {
		st, err := w.counter.Peek(context.Background(), w.rules.Match(key), key)
		if err != nil { // Redis may just have come back
			return false, err.Error()
		}
		return st.Windows[0].Used == want, fmt.Sprint(st.Windows[0].Used)
	})
}

// told waits until the recorder has these transitions of a key.
func (w *world) told(r *recorder, key, want string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("the transitions of %s are %q", key, want), func() (bool, string) {
		return r.of(key) == want, r.of(key)
	})
}

// shows waits until a metric has a value.
func (w *world) shows(metric string, want float64) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s is %v", metric, want), func() (bool, string) {
		n := w.sample(metric)
		return n == want, fmt.Sprint(n)
	})
}

// waiting waits until the outbox of a partition has n transitions.
func (w *world) waiting(p int, n int64) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d transitions wait in the outbox of %d", n, p), func() (bool, string) {
		got := w.redis.XLen(context.Background(), w.keys.Outbox(p)).Val()
		return got == n, fmt.Sprint(got)
	})
}

// dead returns the dead letters of a partition.
func (w *world) dead(p int) []redis.XMessage {
	w.t.Helper()
	letters, err := w.redis.XRange(context.Background(), w.keys.Dead(p), "-", "+").Result()
	testkit.Must(w.t, err)
	return letters
}

// sample sums a metric over the samples that have a label value, or over all if none is given, or an empty one.
func (w *world) sample(name string, value ...string) float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	testkit.Must(w.t, err)
	var sum float64
	for _, f := range families {
		if f.GetName() == "streamcounter_"+name {
			for _, m := range f.GetMetric() {
				has := strings.Join(value, "") == ""
				for _, l := range m.GetLabel() {
					has = has || slices.Contains(value, l.GetValue())
				}
				if has {
					sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
	}
	return sum
}

func (w *world) pending() (n int64) {
	w.t.Helper()
	for p := range w.keys.Partitions {
		got, err := w.redis.XPending(context.Background(), w.keys.Events(p), eventlog.Group).Result()
		if err != nil && !strings.HasPrefix(err.Error(), "NOGROUP") {
			w.t.Fatal(err)
		}
		if got != nil {
			n += got.Count
		}
	}
	return n
}

// recorder is a publisher that records what it receives, or what next has taken if there is one. While `down` it
// fails.
type recorder struct {
	next Publisher
	mu   sync.Mutex
	ids  map[string]bool
	seen []string
	all  []api.Transition
	down bool
	// tries has how many transitions each Publish may have sent before, of how many; if fails, the second one fails.
	tries []string
	fails bool
	// copies is how many came with an ID that had come before.
	copies int
}

func (r *recorder) Publish(ctx context.Context, list []api.Transition, resent int) error {
	if r.next != nil {
		if err := r.next.Publish(ctx, list, resent); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tries = append(r.tries, fmt.Sprintf("%d of %d", resent, len(list)))
	if r.down || r.fails && len(r.tries) == 2 {
		return errors.New("down")
	}
	for _, t := range list {
		if r.ids[t.ID] { // JetStream drops a copy too
			r.copies++
			continue
		}
		if r.ids == nil {
			r.ids = map[string]bool{}
		}
		r.ids[t.ID] = true
		r.all = append(r.all, t)
		r.seen = append(r.seen, fmt.Sprintf("%s %s %d", t.State, t.Key, t.Level))
	}
	return nil
}

func (r *recorder) set(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

func (r *recorder) of(key string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, s := range r.seen {
		if strings.Contains(s, " "+key+" ") {
			out = append(out, strings.Replace(s, " "+key+" ", " ", 1))
		}
	}
	return strings.Join(out, ", ")
}

// keyIn returns a key of the rule api in partition p.
func (w *world) keyIn(p int, name string) string { return keyOf(w.keys, p, "user:"+name) }

const toTheTop = "raised 50, raised 100, throttled 100"

func TestMain(m *testing.M) { streamtest.Main(m) }
