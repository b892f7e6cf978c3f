package client_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/streamtest"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// patience is how long a test waits for what must come; nothing is to take it.
const patience = 20 * time.Second

var quiet = slog.New(slog.DiscardHandler)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// proxy stands before a server. It can be cut, and can swallow what passes: then
// connections stand and nothing comes of them.
type proxy struct {
	addr   string
	target string
	l      net.Listener

	mu    sync.Mutex
	open  map[net.Conn]bool
	cut   bool
	black chan struct{} // not nil: swallow until it is closed
	half  bool          // swallow only what the server says
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{addr: l.Addr().String(), target: target, l: l, open: map[net.Conn]bool{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.heal()
		p.sever(true)
		serving.Wait()
	})
	return p
}

func (p *proxy) serve(c net.Conn) {
	defer c.Close()
	s, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer s.Close()
	p.mu.Lock()
	if p.cut {
		p.mu.Unlock()
		return
	}
	p.open[c], p.open[s] = true, true
	p.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{c, s}, {s, c}} {
		both.Go(func() {
			defer c.Close()
			defer s.Close()
			_, _ = io.Copy(holding{way[0], p, way[1] == s}, way[1])
		})
	}
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
	delete(p.open, s)
}

// holding writes when the proxy lets through.
type holding struct {
	net.Conn
	p      *proxy
	answer bool
}

func (h holding) Write(b []byte) (int, error) {
	h.p.mu.Lock()
	black := h.p.black
	if h.p.half && !h.answer {
		black = nil
	}
	h.p.mu.Unlock()
	if black != nil {
		<-black
	}
	return h.Conn.Write(b)
}

// blackhole holds all back; nobody is told.
func (p *proxy) blackhole() { p.hold(false) }

// holdAnswers hands requests on and holds back what the server says.
func (p *proxy) holdAnswers() { p.hold(true) }

func (p *proxy) hold(half bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.black, p.half = make(chan struct{}), half
}

func (p *proxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.black != nil {
		close(p.black)
		p.black = nil
	}
	p.cut = false
}

// sever ends all connections, and with more set, refuses new ones.
func (p *proxy) sever(more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = more
	for c := range p.open {
		_ = c.Close()
	}
}

func connectNATS(t testing.TB, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(10 * time.Millisecond), nats.ReconnectJitter(0, 0)}, options...)...)
	must(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// relay publishes decisions as `work` does.
type relay struct {
	t         testing.TB
	prefix    string
	js        jetstream.JetStream
	publisher *alerts.Publisher
}

func newRelay(t testing.TB, nc *nats.Conn, prefix string) *relay {
	t.Helper()
	js, err := jetstream.New(nc)
	must(t, err)
	p, err := alerts.NewPublisher(nc, alerts.PublisherConfig{Prefix: prefix, AckTimeout: 500 * time.Millisecond, Log: quiet})
	must(t, err)
	return &relay{t, prefix, js, p}
}

func (r *relay) stream() string {
	throttle, _ := alerts.StreamNames(r.prefix)
	return throttle
}

func (r *relay) publish(list ...api.Transition) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	must(r.t, r.publisher.Publish(ctx, list))
}

// throttle is a decision made at `at` that stands for an hour; change may alter it.
func throttle(rule, key string, at time.Time, change ...func(*api.Transition)) api.Transition {
	ms := at.UnixMilli()
	t := api.Transition{
		Rule: rule, Key: key, State: api.StateThrottled, Level: api.LevelThrottled, Limit: 100, WindowMs: 60_000, Used: 120,
		AtMs: ms, SinceMs: ms, UntilMs: ms + 3_590_000, ExpiresMs: ms + 3_600_000,
	}
	for _, c := range change {
		c(&t)
	}
	return t
}

func release(rule, key string, at time.Time) api.Transition {
	return throttle(rule, key, at, func(t *api.Transition) {
		t.State, t.UntilMs, t.Used = api.StateReleased, at.UnixMilli(), 10
	})
}

// runGuard runs a guard until the test ends, or stop is called.
func runGuard(t testing.TB, nc *nats.Conn, c client.GuardConfig) (g *client.Guard, stop func()) {
	t.Helper()
	c.Log = quiet
	g, err := client.NewGuard(nc, c)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
				t.Errorf("Run: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return g, stop
}

func awaitReady(t testing.TB, g *client.Guard) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, g.Ready(ctx))
}

// awaitThrottled waits until the guard says so of a key.
func awaitThrottled(t testing.TB, g *client.Guard, key string, want bool) {
	t.Helper()
	streamtest.Eventually(t, patience, "key "+key, func() (bool, string) {
		got := g.Throttled(key)
		return got == want, map[bool]string{true: "throttled", false: "free"}[got]
	})
}
