package sinks

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

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
		s.delivered = 1
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
