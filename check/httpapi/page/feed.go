package page

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/internal/activity"
)

// Bounds of what is live.
const (
	maxViewers    = 100                    // pages that are open at once
	messagesEvery = 250 * time.Millisecond // at most four messages a second to a page
	sampleEvery   = time.Second
	// streamFor ends a stream, and the page asks again at once: a token that was revoked meanwhile is refused.
	streamFor     = 45 * time.Second
	keptEvents    = 400 // transitions that wait for the next message of each page
	sentEvents    = 40  // transitions of one message; of more, only how many
	plotted       = 300 // samples that a page gets when it opens: five minutes
	throttledRows = 50
	topKeys       = 10
)

// Config of a Feed. Activity, Throttled, Partitions and Rules are required.
type Config struct {
	Version, Prefix string
	Activity        func(ctx context.Context) (activity.Activity, error)
	Throttled       func(ctx context.Context, n int, after string) ([]api.Throttled, string, error)
	Partitions      func(ctx context.Context) ([]Partition, error)
	Rules           func() []Rule
	// Follow hands on transitions until ctx ends; nil: there is no NATS.
	Follow func(ctx context.Context, take func(api.Transition))
}

// Feed tells pages what happens. It looks at Redis and NATS only while a page is open, once for all pages.
type Feed struct {
	config Config
	wake   chan struct{} // a page opens

	mu      sync.Mutex
	viewers int
	stopped chan struct{} // closed by Stop
	events  []api.Transition
	taken   uint64 // transitions so far: the newest is events[(taken-1)%keptEvents]
	sample  *sample
	samples uint64
	sampler sampler
	plots   []point
}

// NewFeed makes one; Run has it look.
func NewFeed(c Config) *Feed {
	return &Feed{config: c, wake: make(chan struct{}, 1), stopped: make(chan struct{}),
		events: make([]api.Transition, keptEvents)}
}

// Run looks while pages are open, until ctx ends.
func (f *Feed) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
			f.look(ctx)
		}
	}
}

// Stop ends all streams, as a server does that ends; pages connect again.
func (f *Feed) Stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.stopped:
	default:
		close(f.stopped)
	}
}

// look samples once a second until no page is open.
func (f *Feed) look(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer f.forget() // who opens a page after a rest gets nothing of before
	defer following.Wait()
	defer cancel()
	if f.config.Follow != nil {
		following.Go(func() { f.config.Follow(ctx, f.take) })
	}
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for idle := 0; idle < 5; { // a page that is loaded again comes back at once
		f.measure(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		idle++
		if f.watched() {
			idle = 0
		}
	}
}

// forget drops what was seen.
func (f *Feed) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sample, f.plots, f.sampler = nil, nil, sampler{}
}

func (f *Feed) watched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.viewers > 0
}

// measure makes the next sample.
func (f *Feed) measure(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s := f.sampler.next(within, time.Now(), f.config)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sample, f.samples = s, f.samples+1
	if f.plots = append(f.plots, s.point()); len(f.plots) > plotted {
		f.plots = f.plots[len(f.plots)-plotted:]
	}
}

// take keeps a transition for the pages. Alerts of level 100 come with each throttle decision, and
// renewals say nothing new.
func (f *Feed) take(t api.Transition) {
	if t.Renewal || !t.IsThrottle() && t.Level >= api.LevelThrottled {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events[f.taken%keptEvents] = t
	f.taken++
}

// message is one of the stream. What did not change is left out.
type message struct {
	Hello       *hello           `json:"hello,omitempty"`
	Transitions []api.Transition `json:"transitions,omitempty"` // the newest first
	// Skipped transitions came too, and are not listed.
	Skipped uint64  `json:"skipped,omitempty"`
	Sample  *sample `json:"sample,omitempty"`
}

type hello struct {
	Version string  `json:"version"`
	Prefix  string  `json:"prefix"`
	Admin   bool    `json:"admin"` // the token has that scope
	NATS    bool    `json:"nats"`
	Plots   []point `json:"plots"`
}

// seen is what a page has.
type seen struct{ taken, samples uint64 }

// after gives what a page has not, and false where there is nothing.
func (f *Feed) after(s *seen) (m message, any bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.taken - s.taken; n > 0 {
		for i := range min(n, sentEvents) {
			m.Transitions = append(m.Transitions, f.events[(f.taken-1-i)%keptEvents])
		}
		m.Skipped = n - uint64(len(m.Transitions))
	}
	if f.samples != s.samples {
		m.Sample = f.sample
	}
	any = f.taken != s.taken || m.Sample != nil
	s.taken, s.samples = f.taken, f.samples
	return m, any
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
		append([]point{}, f.plots...)}, seen{taken: f.taken}, nil
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

// send writes one event. A page that does not read holds up nobody else, and is cut off by the
// server's write timeout.
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
