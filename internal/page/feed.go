package page

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/internal/activity"
)

// Bounds of what is live.
const (
	maxViewers    = 100                    // pages that are open at once
	messagesEvery = 250 * time.Millisecond // at most four messages a second to a page
	sampleEvery   = time.Second
	// streamFor is how long a stream lasts. The page asks again at once, so a token that was revoked in the meantime
	// is refused.
	streamFor  = 45 * time.Second
	keptEvents = 400 // transitions that wait for the next message of each page; as many of shadow rules
	sentEvents = 40  // transitions of one message, and as many of shadow rules; of further ones, only how many
	plotted    = 300 // samples that a page gets when it opens: five minutes
	listedRows = 50  // of each list
	topKeys    = 10
	readWithin = 5 * time.Second // bounds one reading of Redis
)

// Config of a Feed. Follow alone is optional.
type Config struct {
	Version, Prefix string
	Activity        func(ctx context.Context) (activity.Activity, error)
	Overview        func(ctx context.Context, n int) (api.Overview, error)
	Partitions      func(ctx context.Context) ([]Partition, error)
	Rules           func() []Rule
	Health          func(ctx context.Context) Health
	Latencies       func() check.Latencies // of the calls that this process answers
	// Follow passes on transitions until ctx ends; nil: there is no NATS.
	Follow func(ctx context.Context, take func(api.Transition))
}

// Feed sends to pages what happens. It reads Redis and NATS while a page is open, once for all pages. If no page is
// open, it reads what processes do once a minute, for the trend.
type Feed struct {
	config Config
	wake   chan struct{} // receives when a page opens
	// Stop ends all streams, as the end of the server would; pages connect again.
	Stop    func()
	stopped chan struct{} // closed by Stop

	mu      sync.Mutex
	viewers int
	events  [2]ring // of rules that are enforced, and of shadow rules: neither pushes the other out
	sample  *sample
	samples uint64
	sampler sampler
	plots   []point
	trend   trend
}

// ring has the newest transitions.
type ring struct {
	list  []api.Transition
	taken uint64 // so far: the newest is list[(taken-1)%keptEvents]
}

// NewFeed makes a Feed; Run makes it read.
func NewFeed(c Config) *Feed {
	f := &Feed{config: c, wake: make(chan struct{}, 1), stopped: make(chan struct{})}
	f.Stop = sync.OnceFunc(func() { close(f.stopped) })
	for i := range f.events {
		f.events[i].list = make([]api.Transition, keptEvents)
	}
	return f
}

// Run reads while pages are open, until ctx ends.
func (f *Feed) Run(ctx context.Context) {
	var keeping sync.WaitGroup
	defer keeping.Wait()
	keeping.Go(func() { f.keepTrend(ctx) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
			f.look(ctx)
		}
	}
}

// look samples once a second until no page is open.
func (f *Feed) look(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer f.forget() // a page that is opened later gets no old data
	defer following.Wait()
	defer cancel()
	if f.config.Follow != nil {
		following.Go(func() { f.config.Follow(ctx, f.take) })
	}
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for idle := 0; idle < 5; idle++ { // a page that is loaded again comes back at once
		if f.measure(ctx) {
			idle = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// forget drops what was seen.
func (f *Feed) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sample, f.plots, f.sampler = nil, nil, sampler{}
}

// measure makes the next sample, and reports whether a page is open.
func (f *Feed) measure(ctx context.Context) bool {
	within, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	s := f.sampler.next(within, time.Now(), f.config)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sample, f.samples = s, f.samples+1
	if f.plots = append(f.plots, s.point()); len(f.plots) > plotted {
		f.plots = f.plots[len(f.plots)-plotted:]
	}
	return f.viewers > 0
}

// take keeps a transition for the pages. Alerts of level 100 come with each throttle decision, and
// renewals say nothing new.
func (f *Feed) take(t api.Transition) {
	if t.Renewal || !t.IsThrottle() && t.Level >= api.LevelThrottled {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &f.events[0]
	if t.Shadow {
		r = &f.events[1]
	}
	r.list[r.taken%keptEvents] = t
	r.taken++
}

// message is one message of the stream. What did not change is left out.
type message struct {
	Hello       *hello           `json:"hello,omitempty"`
	Transitions []api.Transition `json:"transitions,omitempty"` // the newest first, those of shadow rules last
	// Skipped is how many more transitions came that are not listed.
	Skipped uint64  `json:"skipped,omitempty"`
	Sample  *sample `json:"sample,omitempty"`
	Hours   *hours  `json:"hours,omitempty"`
}

type hello struct {
	Version string  `json:"version"`
	Prefix  string  `json:"prefix"`
	Admin   bool    `json:"admin"` // the token has that scope
	NATS    bool    `json:"nats"`
	Plots   []point `json:"plots"`
}

// seen is what a page has received.
type seen struct {
	taken         [2]uint64
	samples, made uint64
}

// after returns what a page has not received, and false if there is nothing.
func (f *Feed) after(s *seen) (m message, any bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, r := range f.events {
		n := r.taken - s.taken[k]
		sent := min(n, sentEvents)
		for i := range sent {
			m.Transitions = append(m.Transitions, r.list[(r.taken-1-i)%keptEvents])
		}
		m.Skipped += n - sent
		s.taken[k] = r.taken
	}
	if f.samples != s.samples {
		m.Sample = f.sample
	}
	if f.trend.made != s.made {
		m.Hours = f.trend.hours()
	}
	s.samples, s.made = f.samples, f.trend.made
	return m, len(m.Transitions) > 0 || m.Sample != nil || m.Hours != nil
}

var errManyPages = errors.New("too many pages are open")

// enter counts a page that opens.
func (f *Feed) enter(r *http.Request) (hello, seen, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.viewers >= maxViewers {
		return hello{}, seen{}, errManyPages
	}
	f.viewers++
	select {
	case f.wake <- struct{}{}:
	default:
	}
	return hello{f.config.Version, f.config.Prefix, access.IsAdmin(r.Context()), f.config.Follow != nil,
		append([]point{}, f.plots...)}, seen{taken: [2]uint64{f.events[0].taken, f.events[1].taken}}, nil
}

func (f *Feed) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.viewers--
}

// ServeHTTP streams server-sent events, a JSON message each.
func (f *Feed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	first, has, err := f.enter(r)
	if err != nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer f.leave()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would hold it back
	if send(w, message{Hello: &first}) != nil || r.Method == http.MethodHead {
		return
	}
	tick, end := time.NewTicker(messagesEvery), time.NewTimer(streamFor)
	defer tick.Stop()
	defer end.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-f.stopped:
			return
		case <-end.C:
			return
		case <-tick.C:
		}
		if m, any := f.after(&has); any && send(w, m) != nil {
			return
		}
	}
}

// send writes one event. A page that does not read does not hold up the others. The server's write timeout cuts it
// off.
func send(w http.ResponseWriter, m message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if _, err := w.Write(append(append([]byte("data: "), body...), '\n', '\n')); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}
