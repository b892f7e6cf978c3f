package sinks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// outage is a queue whose endpoint answers as the test wants, on a clock of the test.
type outage struct {
	mu       sync.Mutex
	answer   error
	attempts int
	got      map[string][]int64 // key → versions in order
	outcomes map[string]int
	first    time.Time // when the first and the last alert were accepted
	last     time.Time
}

func (o *outage) queue(giveUp time.Duration) *queue {
	o.got, o.outcomes = map[string][]int64{}, map[string]int{}
	return newQueue(&queue{giveUp: giveUp,
		deliver: func(_ context.Context, t api.Transition) error {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.attempts++
			if o.answer == nil {
				o.got[t.Key] = append(o.got[t.Key], t.Version)
				o.last = time.Now()
				if o.first.IsZero() {
					o.first = o.last
				}
			}
			return o.answer
		},
		done: func(_ *held, outcome string, _ error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.outcomes[outcome]++
		},
		retried: func(*held, error, time.Duration) {}})
}

func (o *outage) set(answer error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = answer
}

func (o *outage) tried() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.attempts
}

func (o *outage) ended(outcome string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.outcomes[outcome]
}

func fill(ctx context.Context, q *queue, keys, each int) {
	for i := range keys * each {
		q.add(ctx, &held{sequence: uint64(i + 1), alert: api.Transition{Key: fmt.Sprint("user:", i%keys),
			Version: int64(i + 1), AtMs: time.Now().UnixMilli()}})
	}
}

// An endpoint is down for five days. Each alert waits at most a minute between attempts. When the endpoint is back,
// the first alert comes within a minute, and with it all waiting alerts, in order for each key.
func TestAnOutageOfDays(t *testing.T) {
	const keys, each, days = 30, 20, 5
	synctest.Test(t, func(t *testing.T) {
		o := &outage{}
		q := o.queue(longestGiveUp)
		o.set(refusal{status: 503})
		fill(t.Context(), q, keys, each)
		time.Sleep(days * 24 * time.Hour)
		if n := o.tried() / keys; n < days*24*60 || n > days*24*60*2+20 {
			t.Errorf("%d attempts for each key, want one or two a minute", n)
		}
		back := time.Now()
		o.set(nil)
		q.working.Wait()
		if d := o.first.Sub(back); d > time.Minute {
			t.Errorf("the first came after %s", d)
		}
		if d := o.last.Sub(o.first); d > 0 {
			t.Errorf("the last came %s after the first", d)
		}
		for key, versions := range o.got {
			for i := range versions {
				if i > 0 && versions[i] <= versions[i-1] || len(versions) != each {
					t.Fatalf("of %s came %v", key, versions)
				}
			}
		}
		if len(o.got) != keys || o.ended("delivered") != keys*each {
			t.Errorf("of %d keys came %v", len(o.got), o.outcomes)
		}
	})
}

// A Retry-After of the endpoint delays all keys until it ends, and no longer.
func TestRetryAfterHoldsAllKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &outage{}
		q := o.queue(longestGiveUp)
		o.set(refusal{status: 429, after: longestAfter})
		began := time.Now()
		fill(t.Context(), q, 20, 2)
		synctest.Wait()
		o.set(nil)
		q.working.Wait()
		if d := o.first.Sub(began); d != longestAfter {
			t.Errorf("the first came after %s, want %s", d, longestAfter)
		}
		if d := o.last.Sub(o.first); d > 0 {
			t.Errorf("the last came %s after the first", d)
		}
	})
}

// An outage longer than give_up: older alerts are given up at their next attempt, and younger ones are delivered.
func TestAnOutageLongerThanGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &outage{}
		q := o.queue(24 * time.Hour)
		o.set(errors.New("connection refused"))
		fill(t.Context(), q, 3, 4)
		time.Sleep(23 * time.Hour)
		fill(t.Context(), q, 3, 4)
		time.Sleep(2 * time.Hour)
		if n := o.ended("expired"); n != 12 {
			t.Errorf("%d were given up after 25 h, want 12", n)
		}
		o.set(nil)
		q.working.Wait()
		if n := o.ended("delivered"); n != 12 {
			t.Errorf("%d came, want 12", n)
		}
	})
}

// A stop while an old alert is being sent does not give it up: its attempt failed because of the stop.
func TestAStopGivesNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &outage{}
		q := o.queue(time.Hour)
		ctx, stop := context.WithCancel(t.Context())
		q.deliver = func(context.Context, api.Transition) error {
			<-ctx.Done()
			return ctx.Err()
		}
		q.add(ctx, &held{alert: api.Transition{Key: "a", AtMs: time.Now().Add(-2 * time.Hour).UnixMilli()}})
		synctest.Wait()
		stop()
		q.working.Wait()
		if len(o.outcomes) > 0 {
			t.Errorf("it ended as %v", o.outcomes)
		}
	})
}

// silent is a consumer on a JetStream that does not answer.
type silent struct{ jetstream.Consumer }

func (silent) Info(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// If neither the endpoint nor JetStream answers, a stop takes Config.Stop. The time for the answers about the position
// and the lock is part of it.
func TestAStopWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := newLock(t.Context(), &lock{
			take: func(_ context.Context, last uint64) (uint64, error) { return last + 1, nil },
			give: func(ctx context.Context, _ uint64) error { <-ctx.Done(); return ctx.Err() }})
		testkit.Must(t, err)
		r := &runner{sink: &Sink{}, config: Config{Stop: time.Hour, AckWait: 24 * time.Hour,
			Metrics: NewMetrics(prometheus.NewRegistry())}}
		ctx, stop := context.WithCancel(t.Context())
		s := newSession(ctx, &start{runner: r, lock: l, consumer: silent{}})
		s.queue.deliver = func(context.Context, api.Transition) error { <-s.attempts.Done(); return s.attempts.Err() }
		s.received = 1
		s.queue.add(ctx, &held{})
		synctest.Wait()
		stop()
		began := time.Now()
		s.end()
		l.end(r.config.lastRequest())
		if d := time.Since(began); d != r.config.Stop {
			t.Errorf("it stopped after %s", d)
		}
	})
}
