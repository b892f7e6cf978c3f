package sinks

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Config of a Group. NATS, Prefix, Name, File and Metrics are required; zero values of the others are defaults.
type Config struct {
	NATS     *nats.Conn
	Prefix   string
	Replicas int    // of the stream SC_SINKS, if it is created; default 1
	Name     string // of this process, unique among the running ones
	File     *File
	Metrics  *Metrics
	Backoff  Backoff
	// AckWait is how long JetStream waits for an acknowledgement or a heartbeat before it delivers an alert again;
	// default 30s.
	AckWait time.Duration
	// Stop is how long a stop takes at most; default 5s. Attempts that have begun may take three fifths of it or more.
	Stop time.Duration
	Log  *slog.Logger
}

// lastRequest is how long a stop waits for JetStream to store the position, and then to take the lock back.
func (c Config) lastRequest() time.Duration { return min(lockEvery, c.Stop/5) }

// Group delivers for all sinks of a file.
type Group struct {
	config  Config
	js      jetstream.JetStream
	changed chan struct{} // the file was loaded again
}

// NewGroup returns a Group; Run runs it.
func NewGroup(c Config) (*Group, error) {
	if c.NATS == nil || c.Prefix == "" || c.File == nil || c.Metrics == nil || c.Name == "" {
		return nil, errors.New("sinks: NATS, Prefix, Name, File and Metrics are required")
	}
	c.Replicas, c.AckWait = cmp.Or(c.Replicas, 1), cmp.Or(c.AckWait, 30*time.Second)
	c.Stop, c.Log = cmp.Or(c.Stop, 5*time.Second), cmp.Or(c.Log, slog.Default())
	js, err := jetstream.New(c.NATS, jetstream.WithDefaultTimeout(2*time.Second))
	if err != nil {
		return nil, err
	}
	g := &Group{config: c, js: js, changed: make(chan struct{}, 1)}
	c.File.OnReload(func(err error) {
		if err == nil {
			select {
			case g.changed <- struct{}{}:
			default:
			}
		}
	})
	return g, nil
}

// running is a sink at work.
type running struct {
	sink *Sink
	stop context.CancelFunc
	work sync.WaitGroup
}

// Run delivers until ctx ends. When it returns, the delivered alerts are acknowledged. A reload stops and starts only
// the sinks that it changes.
func (g *Group) Run(ctx context.Context) {
	now := map[string]*running{} // name → sink
	for {
		g.follow(ctx, now)
		select {
		case <-g.changed:
		case <-ctx.Done():
			for _, r := range now {
				r.work.Wait()
			}
			return
		}
	}
}

// follow stops and starts sinks, so that those of the file run.
func (g *Group) follow(ctx context.Context, now map[string]*running) {
	want := map[string]*Sink{}
	for _, s := range g.config.File.Value() {
		want[s.Name] = s
	}
	var ending sync.WaitGroup
	for name, r := range now {
		if s := want[name]; s == nil || !s.same(r.sink) {
			ending.Go(func() {
				r.stop()
				r.work.Wait()
				if s == nil { // not earlier: until its end the sink would set the gauges again
					g.config.Metrics.end(name)
				}
			})
			delete(now, name)
		}
	}
	ending.Wait()
	for name, s := range want {
		if now[name] == nil {
			now[name] = g.start(ctx, s)
		}
	}
}

func (g *Group) start(ctx context.Context, s *Sink) *running {
	ctx, stop := context.WithCancel(ctx)
	r := &running{sink: s, stop: stop}
	g.config.Metrics.begin(s.Name)
	r.work.Go(func() { newRunner(g, s).run(ctx) })
	return r
}
