package page

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/activity"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every file is there without a token, under the policy, and has nothing that the policy would refuse.
func TestFilesKeepToThePolicy(t *testing.T) {
	routes := Routes(NewFeed(Config{}))
	x := httpapi.NewRouter(nil, routes...)
	get := func(path string, headers ...string) *httptest.ResponseRecorder {
		rec, r := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			r.Header.Set(name, value)
		}
		x.ServeHTTP(rec, r)
		return rec
	}
	refused := regexp.MustCompile(`(?i)<script(>| [^>]*>[^<])|<style|\sstyle=|\son[a-z]+="|https?://[^w]|innerHTML|` +
		`outerHTML|` +
		`insertAdjacent|document\.write|\beval\(|"style"`)
	size := 0
	for _, route := range routes {
		if !route.Open {
			continue
		}
		rec := get(route.Path)
		body := rec.Body.String()
		size += len(body)
		if rec.Code != 200 || rec.Header().Get("Content-Security-Policy") != policy ||
			rec.Header().Get("Content-Type") == "" {
			t.Errorf("%s: %d %v", route.Path, rec.Code, rec.Header())
		}
		if found := refused.FindString(body); found != "" {
			t.Errorf("%s has %q", route.Path, found)
		}
		for _, m := range regexp.MustCompile(`(?:from|src=|href=) ?"(\.?/[^"#]+)"`).FindAllStringSubmatch(body, -1) {
			path := strings.Replace(m[1], "./", "/page/", 1)
			if path != "/" && get(path).Code != 200 {
				t.Errorf("%s asks for %s, which is not there", route.Path, path)
			}
		}
		if again := get(route.Path, "If-None-Match: "+rec.Header().Get("ETag")); again.Code != http.StatusNotModified {
			t.Errorf("%s: asked again with its tag: %d", route.Path, again.Code)
		}
	}
	if size == 0 || size > 100_000 {
		t.Errorf("the page has %d bytes", size)
	}
	if rec := get("/page/none.js"); rec.Code != http.StatusNotFound {
		t.Errorf("a file that is not there: %d", rec.Code)
	}
}

// world is a feed whose sources a test sets.
type world struct {
	*Feed
	server *httptest.Server
	mu     sync.Mutex
	take   func(api.Transition)
	fails  bool
	looked int
}

func newWorld(t *testing.T) *world {
	w := &world{}
	following := make(chan struct{}, 1)
	rules := func() []Rule { return []Rule{{Name: "api"}, {Name: "watch", Shadow: true}} }
	w.Feed = NewFeed(Config{Prefix: "sc", Rules: rules,
		Activity: func(context.Context) (activity.Activity, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.looked++; w.fails {
				return activity.Activity{}, errors.New("away")
			}
			return activity.Activity{Processes: []activity.Process{{Name: "serve a", AtMs: int64(w.looked) * 1000,
				Counts: map[string]activity.Counts{
					"api":   {Allowed: int64(w.looked) * 10, Denied: int64(w.looked)},
					"watch": {Allowed: int64(w.looked) * 7, Denied: int64(w.looked) * 4}}}}}, nil
		},
		Overview: func(context.Context, int) (api.Overview, error) {
			return api.Overview{Throttled: []api.Throttled{{Rule: "api", Key: "user:1"}},
				ByRule: map[string]int64{"api": 1, "watch": 2}}, nil
		},
		Health:     func(context.Context) Health { return Health{RedisMs: 0.3, NATS: "connected"} },
		Latencies:  func() check.Latencies { return check.Latencies{} },
		Partitions: func(context.Context) ([]Partition, error) { return []Partition{{Outbox: 3}}, nil },
		Follow: func(ctx context.Context, take func(api.Transition)) {
			w.mu.Lock()
			w.take = take
			w.mu.Unlock()
			following <- struct{}{}
			<-ctx.Done()
			<-following
		}})
	testkit.Run(t, w.Run)
	w.server = httptest.NewServer(httpapi.NewRouter(nil, Routes(w.Feed)...))
	w.server.Config.RegisterOnShutdown(w.Stop)
	t.Cleanup(func() { w.Stop(); w.server.CloseClientConnections(); w.server.Close() })
	return w
}

// open opens a page and returns its messages; they end with the page.
func (w *world) open(t *testing.T) (<-chan message, func()) {
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", w.server.URL+"/page/live", nil)
	testkit.Must(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	testkit.Must(t, err)
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		body, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: %s", resp.Status, body)
	}
	got := make(chan message, 100)
	go func() {
		defer close(got)
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var m message
				if json.Unmarshal([]byte(data), &m) == nil {
					got <- m
				}
			}
		}
	}()
	return got, cancel
}

// until reads messages up to the first one for which the condition is true.
func until(t *testing.T, got <-chan message, what string, holds func(message) bool) message {
	t.Helper()
	late := time.After(time.Minute)
	for {
		select {
		case m, ok := <-got:
			if !ok {
				t.Fatalf("the stream ended before %s", what)
			}
			if holds(m) {
				return m
			}
		case <-late:
			t.Fatalf("never: %s", what)
		}
	}
}

func TestFeed(t *testing.T) {
	w := newWorld(t)
	got, shut := w.open(t)
	defer shut()
	// Without tokens everybody is an admin.
	if first := <-got; first.Hello == nil || first.Hello.Prefix != "sc" || !first.Hello.NATS || !first.Hello.Admin {
		t.Errorf("%+v", first.Hello)
	}
	m := until(t, got, "rates", func(m message) bool { return m.Sample != nil && m.Sample.Rates["api"].Allowed > 0 })
	if r := m.Sample.Rates["api"]; r.Allowed != 10 || r.Denied != 1 {
		t.Errorf("%+v", r)
	}
	// The decisions of a shadow rule are counted for this rule only, and in no sum.
	if r, p := m.Sample.Rates["watch"], m.Sample.point(); r.Allowed != 7 || r.Denied != 4 || p.Allowed != 10 ||
		p.Denied != 1 || p.ShadowDenied != 4 || p.Throttled != 1 || p.Shadow != 2 {
		t.Errorf("a shadow rule: %+v, in all %+v", r, p)
	}
	if m.Sample.Throttled != 1 || m.Sample.Shadow != 2 || m.Sample.Partitions[0].Outbox != 3 ||
		m.Sample.Health.NATS != "connected" {
		t.Errorf("%+v", m.Sample)
	}

	// If there are many transitions, a message has the newest ones, and the number of the others. Transitions of
	// shadow rules do not replace others.
	w.mu.Lock()
	take := w.take
	w.mu.Unlock()
	take(api.Transition{Key: "enforced", State: api.StateThrottled, Level: 100})
	for i := range 10_000 {
		take(api.Transition{Key: fmt.Sprint(i), State: api.StateThrottled, Level: 100, Shadow: true})
		take(api.Transition{Key: "renewal", State: api.StateThrottled, Level: 100, Renewal: true})
		take(api.Transition{Key: "alert", State: api.StateRaised, Level: 100})
	}
	seen, enforced := uint64(0), false
	until(t, got, "the last transition", func(m message) bool {
		if len(m.Transitions) > 41 {
			t.Errorf("a message has %d transitions", len(m.Transitions))
		}
		seen += uint64(len(m.Transitions)) + m.Skipped
		has := func(key string) bool {
			return slices.ContainsFunc(m.Transitions, func(t api.Transition) bool { return t.Key == key })
		}
		enforced = enforced || has("enforced")
		return has("9999")
	})
	if seen != 10_001 || !enforced {
		t.Errorf("%d transitions are told of, that of an enforced rule: %v", seen, enforced)
	}

	// While Redis is away, the page has what was read last, and says so.
	w.mu.Lock()
	w.fails = true
	w.mu.Unlock()
	m = until(t, got, "a failure", func(m message) bool { return m.Sample != nil && len(m.Sample.Failed) > 0 })
	if m.Sample.ByRule["api"] != 1 || len(m.Sample.Overview.Throttled) != 1 {
		t.Errorf("%+v", m.Sample)
	}
	w.Stop() // as a server does that ends
	for range got {
	}
}

// If too many pages are open, a further one is told to wait. A page that closes makes room.
func TestFeedIsBounded(t *testing.T) {
	f := NewFeed(Config{})
	r := httptest.NewRequest("GET", "/page/live", nil)
	for range maxViewers {
		_, _, err := f.enter(r)
		testkit.Must(t, err)
	}
	rec := httptest.NewRecorder()
	if f.ServeHTTP(rec, r); rec.Code != http.StatusServiceUnavailable || rec.Header().Get("Retry-After") == "" {
		t.Errorf("%d %v", rec.Code, rec.Header())
	}
	f.leave()
	_, _, err := f.enter(r)
	testkit.Must(t, err)
}

// sources have nothing, or fail.
func sources(err func() error) Config {
	return Config{
		Activity:   func(context.Context) (activity.Activity, error) { return activity.Activity{}, err() },
		Overview:   func(context.Context, int) (api.Overview, error) { return api.Overview{}, err() },
		Partitions: func(context.Context) ([]Partition, error) { return nil, err() },
		Rules:      func() []Rule { return nil },
		Health:     func(context.Context) Health { return Health{} },
		Latencies:  func() check.Latencies { return check.Latencies{} },
	}
}

// After a time in which no page was open, a page does not get the old plots and the old sample.
func TestFeedForgetsWhileItRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var opening sync.Mutex // while it is locked, no source answers, so that no new sample comes
		f := NewFeed(sources(func() error {
			opening.Lock()
			defer opening.Unlock()
			return nil
		}))
		go f.Run(t.Context())
		r := httptest.NewRequest("GET", "/page/live", nil)
		open := func() (int, bool) {
			opening.Lock()
			defer opening.Unlock()
			first, has, err := f.enter(r)
			testkit.Must(t, err)
			m, _ := f.after(&has)
			return len(first.Plots), m.Sample != nil
		}
		if n, any := open(); n != 0 || any {
			t.Errorf("at first there are %d points, and a sample: %v", n, any)
		}
		time.Sleep(10 * time.Second)
		f.leave()
		time.Sleep(3 * time.Second) // as a page does that is loaded again
		if n, any := open(); n < 10 || !any {
			t.Errorf("of a page that comes back at once there are %d points, and a sample: %v", n, any)
		}
		f.leave()
		time.Sleep(time.Minute)
		if n, any := open(); n != 0 || any {
			t.Errorf("after a minute there are %d points, and a sample: %v", n, any)
		}
	})
}

// The page names each source that could not be read until it is read again, not only in one sample.
func TestFailuresAreNamedUntilTheyEnd(t *testing.T) {
	away, s, now := true, sampler{}, time.Now()
	fails := func() error {
		if away {
			return errors.New("away")
		}
		return nil
	}
	next := func(after time.Duration) string {
		now = now.Add(after)
		return strings.Join(s.next(t.Context(), now, sources(fails)).Failed, ", ")
	}
	const rest = "who is throttled, partitions"
	if got := next(0); got != "what processes do, "+rest {
		t.Errorf("while Redis is away: %q", got)
	}
	away = false
	if got := next(100 * time.Millisecond); got != rest {
		t.Errorf("before the next look: %q", got)
	}
	if got := next(time.Minute); got != "" {
		t.Errorf("after it: %q", got)
	}
}

// The trend has a point a minute of the last six hours, and sums each rule's checks of these.
func TestTrendIsBounded(t *testing.T) {
	var tr trend
	begin := time.UnixMilli(1_700_000_000_000)
	minutes := func(from, to int) {
		for i := from; i < to; i++ {
			now := begin.Add(time.Duration(i) * time.Minute)
			n := int64(i)
			tr.add(now, activity.Activity{Processes: []activity.Process{
				{Name: "serve", AtMs: now.UnixMilli(), Counts: map[string]activity.Counts{
					"api": {Allowed: 600 * n, Denied: 60 * n}, "watch": {Allowed: 540 * n, Denied: 120 * n}}},
				{Name: "work", AtMs: now.UnixMilli(), Counts: map[string]activity.Counts{
					"api": {Events: 120 * n, Throttled: 3}, "watch": {Throttled: 5}}}}},
				map[string]bool{"watch": true})
		}
	}
	minutes(100, 101)
	if n := len(tr.hours().Points); n != 0 {
		t.Errorf("one look gives %d points", n)
	}
	minutes(101, 103)
	got := tr.hours()
	want := point{AtMs: begin.Add(101 * time.Minute).UnixMilli(), Allowed: 10, Denied: 1, ShadowDenied: 2, Events: 2,
		Throttled: 3, Shadow: 5}
	if len(got.Points) != 2 || got.Points[0] != want {
		t.Errorf("%+v, want %+v", got.Points, want)
	}
	if got.Totals["api"] != (tally{1200, 120}) || got.Totals["watch"] != (tally{1080, 240}) {
		t.Errorf("%+v", got.Totals)
	}
	minutes(103, 1000)
	if got = tr.hours(); len(got.Points) != trendPoints || got.Totals["api"].Denied != trendPoints*60 {
		t.Errorf("%d points, %+v", len(got.Points), got.Totals)
	}
}

// A process that begins, or that was not seen for long, adds what it counts from then on.
func TestTrendOfProcessesThatCome(t *testing.T) {
	var tr trend
	now := time.UnixMilli(1_700_000_000_000)
	look := func(after time.Duration, processes ...activity.Process) point {
		now = now.Add(after)
		for i := range processes {
			processes[i].AtMs = now.UnixMilli()
		}
		tr.add(now, activity.Activity{Processes: processes}, nil)
		if len(tr.minute) == 0 {
			return point{}
		}
		return tr.minute[len(tr.minute)-1].point
	}
	serve := func(allowed int64) activity.Process {
		return activity.Process{Name: "serve", Counts: map[string]activity.Counts{"api": {Allowed: allowed}}}
	}
	look(0)
	if got := look(time.Minute, serve(1_000_000)); got.Allowed != 0 {
		t.Errorf("a process that comes: %+v", got)
	}
	if got := look(time.Minute, serve(1_000_060)); got.Allowed != 1 {
		t.Errorf("a minute later: %+v", got)
	}
	if got := look(time.Hour, serve(2_000_000)); got.Allowed != 0 {
		t.Errorf("after an hour without a look: %+v", got)
	}
}

// The latency is that of the last minute, not of all calls since the start.
func TestLatencyIsOfTheLastMinute(t *testing.T) {
	var s sampler
	now := time.Now()
	calls := []uint64{1000, 1000, 1000} // within 1, 2 and 4 ms
	look := func(after time.Duration) *Latency {
		now = now.Add(after)
		return s.latency(now, Config{Latencies: func() check.Latencies {
			return check.Latencies{Seconds: []float64{0.001, 0.002, 0.004}, Calls: append([]uint64{}, calls...),
				All: calls[2]}
		}})
	}
	if got := look(0); got != nil {
		t.Errorf("of calls before: %+v", got)
	}
	calls[2] += 100 // that took 2 to 4 ms
	if got := look(time.Second); got == nil || got.P50 != 3 || got.P99 < 3.9 || got.P99 > 4 {
		t.Errorf("%+v", got)
	}
	look(30 * time.Second)
	if got := look(31 * time.Second); got != nil {
		t.Errorf("a minute later: %+v", got)
	}
}
