package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// world is a real Redis and NATS with a prefix of the test's.
type world struct {
	t         testing.TB
	redisURL  string
	natsURL   string
	prefix    string
	rulesFile string
	rules     *windows.Rules
	redis     redis.UniversalClient
	keys      *stream.Keys
	counter   *windows.Redis
}

func newWorld(t testing.TB, rulesText string) *world {
	t.Helper()
	return newWorldAt(t, streamtest.Redis(t), 16, rulesText)
}

func newWorldAt(t testing.TB, redisURL string, partitions int, rulesText string) *world {
	t.Helper()
	w := &world{t: t, redisURL: redisURL, natsURL: streamtest.NATS(t), prefix: streamtest.Prefix(t),
		rulesFile: testkit.WriteFile(t, "rules.yml", rulesText)}
	var err error
	if w.rules, err = windows.Load(w.rulesFile); err != nil {
		t.Fatal(err)
	}
	opts, err := redisOptions(w.redisURL)
	testkit.Must(t, err)
	w.redis = openRedisClient(opts)
	t.Cleanup(func() { _ = w.redis.Close() })
	if w.keys, err = stream.NewKeys(w.prefix, partitions); err != nil {
		t.Fatal(err)
	}
	w.counter = windows.NewRedis(w.redis, w.keys)
	return w
}

func (w *world) worker(more ...string) *process {
	w.t.Helper()
	return startProgram(w.t, append([]string{"work", "--redis", w.redisURL, "--nats", w.natsURL, "--prefix", w.prefix,
		"--rules", w.rulesFile,
		"--http", "127.0.0.1:0", "--min-idle", "1s"}, more...)...)
}

// drained waits until every stored event is read and acknowledged and every
// transition published.
func (w *world) drained() {
	w.t.Helper()
	ctx := context.Background()
	streamtest.Eventually(w.t, 90*time.Second, "everything is folded and published", func() (bool, string) {
		var unread, pending, outbox int64
		for p := range w.keys.Partitions {
			groups, err := w.redis.XInfoGroups(ctx, w.keys.Events(p)).Result()
			if err != nil || len(groups) == 0 {
				if n, _ := w.redis.XLen(ctx, w.keys.Events(p)).Result(); n > 0 {
					unread += n
				}
				continue
			}
			left, err := w.redis.XRangeN(ctx, w.keys.Events(p), "("+groups[0].LastDeliveredID, "+", 1).Result()
			if err != nil {
				return false, err.Error()
			}
			unread += int64(len(left))
			pending += groups[0].Pending
			n, err := w.redis.XLen(ctx, w.keys.Outbox(p)).Result()
			if err != nil {
				return false, err.Error()
			}
			outbox += n
		}
		return unread+pending+outbox == 0, fmt.Sprintf(
			"%d partitions with unread events, %d pending, %d in the outbox", unread, pending, outbox)
	})
}

// counted gives what each key has used.
func (w *world) counted(keys map[string]int64) map[string]int64 {
	w.t.Helper()
	got := map[string]int64{}
	for key := range keys {
		st, err := w.counter.Peek(context.Background(), w.rules.Match(key), key)
		testkit.Must(w.t, err)
		got[key] = st.Windows[0].Used
	}
	return got
}

func (w *world) sameCounts(want map[string]int64) {
	w.t.Helper()
	got := w.counted(want)
	if maps.Equal(got, want) {
		return
	}
	shown := 0
	for k, n := range want {
		if got[k] != n && shown < 10 {
			w.t.Errorf("%s: counted %d, appended %d", k, got[k], n)
			shown++
		}
	}
	w.t.Fatal("the counts differ")
}

// published gives all transitions that stand in the two streams, per key in order.
func (w *world) published() (alerts, throttles map[string][]string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	js := streamtest.JetStream(w.t, w.natsURL)
	read := func(name string) (out map[string][]string, err error) {
		s, err := js.Stream(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("looking up: %w", err)
		}
		out = map[string][]string{}
		if s.CachedInfo().State.Msgs == 0 {
			return out, nil
		}
		c, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
		if err != nil {
			return nil, fmt.Errorf("making a consumer: %w", err)
		}
		messages, err := c.Messages()
		if err != nil {
			return nil, fmt.Errorf("reading: %w", err)
		}
		defer messages.Stop()
		for left := uint64(1); left > 0; {
			m, err := messages.Next(jetstream.NextMaxWait(5 * time.Second))
			if errors.Is(err, nats.ErrTimeout) {
				// What was left can have reached the end of its time meanwhile.
				if info, err := s.Info(ctx); err == nil && info.State.Msgs == 0 {
					break
				}
			}
			if err != nil {
				return nil, fmt.Errorf("after %d keys: %w", len(out), err)
			}
			meta, err := m.Metadata()
			if err != nil {
				return nil, err
			}
			left = meta.NumPending
			var tr api.Transition
			if err := json.Unmarshal(m.Data(), &tr); err != nil {
				return nil, err
			}
			out[tr.Key] = append(out[tr.Key], fmt.Sprintf("%s %d", tr.State, tr.Level))
		}
		return out, nil
	}
	upper := strings.ToUpper(w.prefix)
	for name, into := range map[string]*map[string][]string{upper + "_ALERTS": &alerts,
		upper + "_THROTTLE": &throttles} {
		// A cluster that has just come back may not answer for a moment.
		streamtest.Eventually(w.t, time.Minute, name+" can be read", func() (bool, string) {
			list, err := read(name)
			*into = list
			return err == nil, fmt.Sprint(err)
		})
	}
	return alerts, throttles
}

// The promise, with workers killed in the middle of it: every stored event
// counts once, and every transition is published once, in order per key.
func TestEveryEventCountsOnceWhileWorkersAreKilled(t *testing.T) {
	w := newWorld(t, `
rules:
  - name: api
    match: "user:*"
    windows: [{limit: 50, per: 1h}]
    alerts: [60%]
`)
	events, keys := 200_000, 10_000
	if testing.Short() {
		events, keys = 20_000, 1_000
	}
	workers := []*process{w.worker(), w.worker(), w.worker()}
	for _, p := range workers {
		p.until(`"msg":"ready"`)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	var deaths atomic.Int64
	go func() {
		defer close(stopped)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-tick.C:
				workers[n%3].kill()
				deaths.Add(1)
				workers[n%3] = w.worker()
			case <-stop:
				return
			}
		}
	}()

	appended := map[string]int64{}
	log, err := stream.NewLog(w.redis, w.keys, time.Hour)
	testkit.Must(t, err)
	random := rand.New(rand.NewPCG(1, 2))
	for sent := 0; sent < events; {
		batch := make([]api.Event, 500)
		for i := range batch {
			batch[i] = api.Event{Key: fmt.Sprintf("user:%d", random.IntN(keys)), Count: 1 + random.Int64N(3)}
			appended[batch[i].Key] += batch[i].Count
		}
		if out := log.Append(context.Background(), batch); out.Err != nil {
			t.Fatal(out.Err)
		}
		sent += len(batch)
	}
	// At least three die, also where the machine is fast.
	streamtest.Eventually(t, 30*time.Second, "three workers have been killed", func() (bool, string) {
		n := deaths.Load()
		return n >= 3, fmt.Sprint(n)
	})
	close(stop)
	<-stopped
	t.Logf("%d workers were killed", deaths.Load())
	w.drained()
	w.sameCounts(appended)

	// Nothing falls within the hour, so a recount of what was appended says
	// exactly what must have been published.
	alerts, throttles := w.published()
	wantAlerts, wantThrottles := map[string][]string{}, map[string][]string{}
	for k, n := range appended {
		if n >= 30 {
			wantAlerts[k] = append(wantAlerts[k], "raised 60")
		}
		if n >= 50 {
			wantAlerts[k] = append(wantAlerts[k], "raised 100")
			wantThrottles[k] = []string{"throttled 100"}
		}
	}
	if len(wantAlerts) == 0 || len(wantThrottles) == 0 {
		t.Fatal("no key crossed a threshold: the test proves nothing")
	}
	sameTransitions(t, "alerts", alerts, wantAlerts)
	sameTransitions(t, "throttles", throttles, wantThrottles)
}

func sameTransitions(t *testing.T, what string, got, want map[string][]string) {
	t.Helper()
	shown := 0
	for k := range want {
		if g, n := strings.Join(got[k], ", "), strings.Join(want[k], ", "); g != n && shown < 10 {
			t.Errorf("%s of %s: published %q, a recount says %q", what, k, g, n)
			shown++
		}
	}
	for k := range got {
		if want[k] == nil && shown < 10 {
			t.Errorf("%s of %s: published %q, a recount says none", what, k, got[k])
			shown++
		}
	}
	t.Logf("%d keys with %s", len(got), what)
}

// A real log, appended as a user would, against what the shell counts.
func TestAccessLogCountsAsTheShellDoes(t *testing.T) {
	text, err := os.ReadFile("testdata/apache_access.log")
	testkit.Must(t, err)
	want := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		want["ip:"+strings.Fields(line)[0]]++ // awk '{print $1}' | sort | uniq -c
	}
	if len(want) != 1753 {
		t.Fatalf("%d hosts, expected 1753", len(want))
	}
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d workers", n), func(t *testing.T) {
			w := newWorld(t, "rules:\n  - name: web\n    match: \"ip:*\"\n    windows: [{limit: 100000, per: 1h}]\n")
			for range n {
				w.worker().until(`"msg":"ready"`)
			}
			code, out, errs := runProgram(t, string(text), "append", "--format", "clf", "--redis", w.redisURL,
				"--prefix", w.prefix, "--json")
			var sum appendSummary
			if err := json.Unmarshal([]byte(out), &sum); err != nil || code != 0 || sum.Events != 10_000 ||
				sum.Rejected != 0 {
				t.Fatalf("append: exit code %d, %s%s", code, out, errs)
			}
			w.drained()
			w.sameCounts(want)
		})
	}
}

// NATS goes away under load and comes back: every transition arrives, in order
// per key. STREAMCOUNTER_TEST_OUTAGE makes the absence longer (30s by hand).
func TestTransitionsSurviveAnAbsenceOfNATS(t *testing.T) {
	outage := absence(t)
	own := streamtest.OwnNATS(t)
	x := newCrossings(t, own.URL(), 1)
	x.load(time.Second)
	own.Stop()
	x.load(outage)
	own.Start()
	x.load(time.Second)
	x.verify()
}

// absence is how long NATS is to be away: STREAMCOUNTER_TEST_OUTAGE, or 3s.
func absence(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("STREAMCOUNTER_TEST_OUTAGE")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	testkit.Must(t, err)
	return d
}

// crossings is a load in which each key reaches its limit once: it must be
// raised and cleared once.
type crossings struct {
	t    *testing.T
	w    *world
	log  *stream.Log
	keys int
}

func newCrossings(t *testing.T, natsURL string, replicas int) *crossings {
	t.Helper()
	w := newWorld(t, `
rules:
  - name: api
    match: "user:*"
    windows: [{limit: 10, per: 500ms}]
    hold: 100ms
`)
	w.natsURL = natsURL
	for range 2 {
		w.worker("--nats-replicas", fmt.Sprint(replicas)).until(`"msg":"ready"`)
	}
	log, err := stream.NewLog(w.redis, w.keys, time.Hour)
	testkit.Must(t, err)
	return &crossings{t: t, w: w, log: log}
}

func (x *crossings) load(d time.Duration) {
	x.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(d); ; {
		select {
		case <-tick.C:
			var batch []api.Event
			for range 10 {
				batch = append(batch, api.Event{Key: fmt.Sprintf("user:%d", x.keys), Count: 10})
				x.keys++
			}
			if out := x.log.Append(context.Background(), batch); out.Err != nil {
				x.t.Fatal(out.Err)
			}
		case <-end:
			return
		}
	}
}

func (x *crossings) verify() {
	x.t.Helper()
	streamtest.Eventually(x.t, 60*time.Second, "no key stands at a level", func() (bool, string) {
		var n int64
		for p := range x.w.keys.Partitions {
			n += x.w.redis.ZCard(context.Background(), x.w.keys.Due(p)).Val()
		}
		return n == 0, fmt.Sprint(n)
	})
	x.w.drained()
	alerts, throttles := x.w.published()
	want := map[string][]string{}
	for k := range x.keys {
		want[fmt.Sprintf("user:%d", k)] = []string{"raised 100", "cleared 100"}
	}
	sameTransitions(x.t, "alerts", alerts, want)
	// The snapshot keeps a release for a minute: all that are there say released.
	for k, list := range throttles {
		if strings.Join(list, ", ") != "released 100" {
			x.t.Errorf("snapshot of %s: %v, expected a release", k, list)
		}
	}
}

// A Redis that may evict counters is said to do so at the start.
func TestStartAdvisesOnRedisSettings(t *testing.T) {
	own := streamtest.OwnRedis(t, "--maxmemory-policy", "volatile-lru", "--stream-node-max-bytes", "4096")
	p := startProgram(t, "serve", "--redis", own.URL(), "--rules", testkit.WriteFile(t, "rules.yml", devRulesText),
		"--http",
		"127.0.0.1:0")
	p.until(`"msg":"ready"`)
	for _, want := range []string{"CONFIG SET maxmemory-policy noeviction", "CONFIG SET stream-node-max-bytes 512",
		"Redis: maxmemory-policy: volatile-lru"} {
		if !strings.Contains(p.text(), want) {
			t.Errorf("no %q in\n%s", want, p.text())
		}
	}
}
