package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/stream"
)

// flushEvery is how often the load is sent: one pipeline with the events that have become due.
const flushEvery = time.Millisecond

// retention of the run's events.
const retention = 10 * time.Minute

// load appends at the rate for d, however long Redis takes to answer: late events are sent with the next flush.
func (r *run) load(ctx context.Context, d time.Duration) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	start, done := time.Now(), int64(0)
	for elapsed := time.Duration(0); elapsed < d; elapsed = time.Since(start) {
		due := int64(r.Rate * elapsed.Seconds())
		if err := r.send(ctx, int(due-done)); err != nil {
			return err
		}
		done = due
		if err := r.probes.tick(ctx); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// fill appends n events as fast as Redis accepts them.
func (r *run) fill(ctx context.Context, n int) error {
	for ; n > 0; n -= 2000 {
		if err := r.send(ctx, min(n, 2000)); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) send(ctx context.Context, n int) error {
	if n == 0 {
		return nil
	}
	pipe := r.Client.Pipeline()
	for range n {
		add(ctx, pipe, r.keys, "user:"+strconv.Itoa(r.choose()))
	}
	if now := time.Now(); now.Sub(r.renewed) > time.Second {
		r.renewed = now
		for p := range r.keys.Partitions {
			pipe.PExpire(ctx, r.keys.Events(p), retention)
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("appending: %w", err)
	}
	r.sent += int64(n)
	return nil
}

// add adds one event to a pipeline, as any producer would.
func add(ctx context.Context, pipe redis.Pipeliner, keys *stream.Keys, key string) {
	pipe.XAdd(ctx, &redis.XAddArgs{
		Stream: keys.Events(keys.Partition(key)), MinID: strconv.FormatInt(time.Now().Add(-retention).UnixMilli(), 10),
		Approx: true, Values: []any{"key", key, "count", 1},
	})
}

// probeEvery is how often a new key crosses its limit.
const probeEvery = 50 * time.Millisecond

// probes measures decisions. Each probe is a new key whose single event reaches its limit. The time is measured from
// just before the XADD is sent to the message on NATS.
type probes struct {
	*run
	next    int
	lastAt  time.Time
	mu      sync.Mutex
	sent    map[string]time.Time // key → when its event was sent
	latency *hdrhistogram.Histogram
}

func newProbes(nc *nats.Conn, r *run) (*probes, error) {
	p := &probes{run: r, sent: map[string]time.Time{}, latency: newHistogram()}
	_, err := nc.Subscribe(r.keys.Prefix+".throttle.probe.>", func(m *nats.Msg) {
		at := time.Now()
		var t api.Transition
		if json.Unmarshal(m.Data, &t) == nil && t.State == api.StateThrottled {
			p.hear(t.Key, at)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("subscribing to decisions: %w", err)
	}
	return p, nc.Flush()
}

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 60_000_000, 3) } // µs

func (p *probes) hear(key string, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	began, ok := p.sent[key]
	if !ok { // a renewal
		return
	}
	delete(p.sent, key)
	// A decision after more than a minute counts as a minute, the most that the histogram takes.
	_ = p.latency.RecordValue(min(max(1, at.Sub(began).Microseconds()), p.latency.HighestTrackableValue()))
}

// tick sends the next probe when it is due.
func (p *probes) tick(ctx context.Context) error {
	if time.Since(p.lastAt) < probeEvery {
		return nil
	}
	p.lastAt = time.Now()
	key := "probe:" + strconv.Itoa(p.next)
	p.next++
	p.mu.Lock()
	p.sent[key] = p.lastAt
	p.mu.Unlock()
	pipe := p.Client.Pipeline()
	add(ctx, pipe, p.keys, key)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("appending a probe: %w", err)
	}
	return nil
}

// first sends probes until a decision arrives: the worker is ready then.
func (p *probes) first(ctx context.Context) error {
	for start := time.Now(); p.report().Count == 0; {
		if time.Since(start) > startTimeout {
			return errNoDecision
		}
		if err := p.tick(ctx); err != nil {
			return err
		}
		if !pause.For(ctx, probeEvery) {
			return ctx.Err()
		}
	}
	return nil
}

// begin discards what was measured until now.
func (p *probes) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency, p.sent = newHistogram(), map[string]time.Time{}
}

func (p *probes) report() *Decisions {
	p.mu.Lock()
	defer p.mu.Unlock()
	us := p.latency.ValueAtQuantile
	return &Decisions{
		Count: p.latency.TotalCount(), Missing: len(p.sent),
		P50Us: us(50), P90Us: us(90), P99Us: us(99), MaxUs: p.latency.Max(),
	}
}
