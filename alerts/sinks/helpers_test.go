package sinks_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/alerts/sinks"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// receiver is an endpoint that verifies requests with the library of Standard Webhooks.
type receiver struct {
	*httptest.Server
	t      testing.TB
	verify *standardwebhooks.Webhook

	mu       sync.Mutex
	answer   func(key string, w http.ResponseWriter) bool // false: it has answered no; nil: all is taken
	attempts int
	got      []api.Transition // taken, in order
	texts    []string
}

func newReceiver(t testing.TB) *receiver {
	t.Helper()
	verify, err := standardwebhooks.NewWebhook(secret)
	testkit.Must(t, err)
	r := &receiver{t: t, verify: verify}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err == nil {
		err = r.verify.Verify(body, req.Header)
	}
	var event struct {
		Type, Text string
		Data       api.Transition
	}
	if err == nil {
		err = json.Unmarshal(body, &event)
	}
	id := req.Header.Get("webhook-id")
	if err == nil && (event.Data.ID != id || event.Type != "alert."+string(event.Data.State)) {
		err = fmt.Errorf("id %q, type %q of %+v", id, event.Type, event.Data)
	}
	if err != nil {
		r.t.Errorf("a request that no receiver takes: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempts++
	if r.answer != nil && !r.answer(event.Data.Key, w) {
		return
	}
	r.got, r.texts = append(r.got, event.Data), append(r.texts, event.Text)
}

func (r *receiver) answers(f func(key string, w http.ResponseWriter) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = f
}

func down(_ string, w http.ResponseWriter) bool {
	w.WriteHeader(http.StatusServiceUnavailable)
	return false
}

// copies returns how often these alerts were accepted, all together.
func (r *receiver) copies(list []api.Transition) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.got {
		if slices.ContainsFunc(list, func(one api.Transition) bool { return one.ID == t.ID }) {
			n++
		}
	}
	return n
}

// taken returns the accepted alerts, without copies by id, and how many attempts there were.
func (r *receiver) taken() (list []api.Transition, attempts int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[string]bool{}
	for _, t := range r.got {
		if !seen[t.ID] {
			seen[t.ID] = true
			list = append(list, t)
		}
	}
	return list, r.attempts
}

// count returns how many attempts there were.
func (r *receiver) count() int { _, attempts := r.taken(); return attempts }

// allTexts returns the texts of the accepted alerts.
func (r *receiver) allTexts() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.texts, "\n")
}

// world is one prefix on NATS with a file of sinks.
type world struct {
	t         *testing.T
	url       string
	prefix    string
	dir, path string
	publisher *alerts.Publisher
	log       *testkit.Log
	version   int64
	drain     time.Duration // of a stop; default 5s
	replicas  int           // of the streams
}

// newWorld returns a world with one replica of each stream, or with as many.
func newWorld(t *testing.T, url string, replicas ...int) *world {
	t.Helper()
	w := newFiles(t, url)
	w.replicas = append(replicas, 1)[0]
	w.addStreams()
	return w
}

// addStreams creates the streams that alerts are published to, and their publisher.
func (w *world) addStreams() {
	w.t.Helper()
	var err error
	w.publisher, err = alerts.NewPublisher(w.connect(), alerts.PublisherConfig{Prefix: w.prefix, Replicas: w.replicas})
	testkit.Must(w.t, err)
	streamtest.Succeeds(w.t, "there are streams", func() error { return w.publisher.Ensure(w.t.Context()) })
}

// newFiles returns a world without a publisher.
func newFiles(t *testing.T, url string) *world {
	t.Helper()
	w := &world{t: t, url: url, prefix: streamtest.Prefix(t), dir: t.TempDir(), log: &testkit.Log{}}
	w.path = filepath.Join(w.dir, "sinks.yml")
	w.write("secret", secret+"\n")
	return w
}

func (w *world) connect() *nats.Conn {
	w.t.Helper()
	nc, err := nats.Connect(w.url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	testkit.Must(w.t, err)
	w.t.Cleanup(nc.Close)
	return nc
}

// process is a running group.
type process struct {
	nc       *nats.Conn
	registry *prometheus.Registry
	file     *sinks.File
	stop     func()
}

// start runs the sinks of the file until the test or stop ends them.
func (w *world) start() *process {
	w.t.Helper()
	return w.run(w.connect())
}

func (w *world) run(nc *nats.Conn) *process {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(w.log, nil))
	file, err := sinks.Open(w.path, log)
	testkit.Must(w.t, err)
	p := &process{nc: nc, registry: prometheus.NewRegistry(), file: file}
	g, err := sinks.NewGroup(sinks.Config{NATS: p.nc, Prefix: w.prefix, Name: fmt.Sprintf("process-%p", p), File: file,
		Metrics: sinks.NewMetrics(p.registry), Replicas: w.replicas, AckWait: time.Second,
		Stop: w.drain, Log: log,
		Backoff: sinks.Backoff{From: 5 * time.Millisecond, Most: 100 * time.Millisecond}})
	testkit.Must(w.t, err)
	p.stop = testkit.Run(w.t, func(ctx context.Context) {
		var running sync.WaitGroup
		running.Go(func() { g.Run(ctx) })
		running.Go(func() { file.Run(ctx) })
		running.Wait()
	})
	return p
}

// metric returns the value of a metric with these labels, or -1 if no sample has them.
func (p *process) metric(t testing.TB, name, labels string) float64 {
	t.Helper()
	families, err := p.registry.Gather()
	testkit.Must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var has []string
			for _, l := range m.GetLabel() {
				has = append(has, l.GetValue())
			}
			if f.GetName() == name && strings.Join(has, " ") == labels {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

func (p *process) count(t testing.TB, sink, outcome string) int {
	t.Helper()
	return int(p.metric(t, "streamcounter_sink_deliveries_total", outcome+" "+sink))
}

func (p *process) oldest(t testing.TB, sink string) float64 {
	t.Helper()
	return p.metric(t, "streamcounter_sink_oldest_undelivered_seconds", sink)
}

func (w *world) write(name, text string) {
	w.t.Helper()
	rewrite(w.t, filepath.Join(w.dir, name), text)
}

// sinks writes the file; SECRET stands for the path of the secret.
func (w *world) sinks(text string) {
	w.t.Helper()
	w.write("sinks.yml", "sinks:\n"+strings.ReplaceAll(text, "SECRET", filepath.Join(w.dir, "secret")))
}

func (w *world) webhook(name string, r *receiver, more string) string {
	return fmt.Sprintf("  - {name: %s, type: webhook, url: %q, secret_file: SECRET%s}\n", name, r.URL+"/hook", more)
}

// alert returns the next alert of a key.
func (w *world) alert(key string, level int, state api.State) api.Transition {
	w.version++
	now := time.Now().UnixMilli()
	t := api.Transition{Rule: "api", Key: key, State: state, Level: level, Limit: 100, WindowMs: 60_000,
		Used: int64(level), Version: w.version, AtMs: now, SinceMs: now, UntilMs: now + 60_000, ExpiresMs: now + 70_000}
	t.ID = t.MessageID(w.prefix)
	return t
}

func (w *world) publish(list ...api.Transition) []api.Transition {
	w.t.Helper()
	testkit.Must(w.t, w.publisher.Publish(w.t.Context(), list, 0))
	return list
}

// wantInOrder compares what came with what was published: every alert, in order for each key.
func wantInOrder(t testing.TB, got, want []api.Transition) {
	t.Helper()
	split := func(list []api.Transition) map[string][]string {
		out := map[string][]string{}
		for _, a := range list {
			out[a.Key] = append(out[a.Key], a.ID)
		}
		return out
	}
	g, w := split(got), split(want)
	for key, ids := range w {
		if fmt.Sprint(g[key]) != fmt.Sprint(ids) {
			t.Errorf("of %s came %d of %d:\n%v\nwant\n%v", key, len(g[key]), len(ids), g[key], ids)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d came, want %d", len(got), len(want))
	}
}

// rewrite replaces the contents of a file in one step.
func rewrite(t testing.TB, path, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path+".new", []byte(text), 0o600))
	testkit.Must(t, os.Rename(path+".new", path))
}

// endpoint counts the requests that it gets, or takes.
type endpoint interface{ count() int }

// ready waits until the sinks of the file have their consumers: a new consumer reads only alerts from then on.
func (w *world) ready(endpoints ...endpoint) {
	w.t.Helper()
	before := make([]int, len(endpoints))
	for i, e := range endpoints {
		before[i] = e.count()
	}
	streamtest.Eventually(w.t, "each sink delivers", func() (bool, string) {
		w.publish(w.alert("ready", 80, api.StateRaised))
		for i, e := range endpoints {
			if e.count() == before[i] {
				return false, fmt.Sprintf("sink %d has sent nothing", i)
			}
		}
		return true, ""
	})
}

// of leaves out the alerts that ready published.
func of(list []api.Transition) (out []api.Transition) {
	for _, t := range list {
		if t.Key != "ready" {
			out = append(out, t)
		}
	}
	return out
}

func (r *receiver) awaitOf(n int) []api.Transition {
	r.t.Helper()
	var list []api.Transition
	streamtest.Eventually(r.t, fmt.Sprintf("%d alerts come", n), func() (bool, string) {
		all, attempts := r.taken()
		list = of(all)
		return len(list) >= n, fmt.Sprintf("%d came, by %d attempts", len(list), attempts)
	})
	return list
}
