package stream_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// While Redis refuses, a full producer's OnFlush queues the refused events again. They find their room, although
// other callers wait for room too.
func TestOnFlushQueuesRefusedEventsAgain(t *testing.T) {
	c, k := streamtest.AnyRedis(t), newKeys(t, 1)
	ctx := t.Context()
	testkit.Must(t, c.Set(ctx, k.Events(0), "no stream", 0).Err())
	var p *stream.Producer
	flushes, others, errs := 0, make(chan error, 5), make(chan error, 100)
	waits := watch(ctx)
	onFlush := func(out stream.Outcome) {
		if flushes++; flushes == 1 { // every place is taken, and somebody waits
			for range cap(others) {
				go func() { others <- p.Append(waits, api.Event{Key: "other", Count: 1}) }()
				<-waits.waiting
			}
		} else if flushes == 4 {
			testkit.Must(t, c.Del(ctx, k.Events(0)).Err())
		}
		errs <- p.Again(out.Refused...)
		if len(out.Refused) > 0 && !errors.Is(p.Again(api.Event{Key: "more", Count: 1}), api.ErrQueueFull) {
			t.Error("more events than were refused are taken")
		}
	}
	p = newProducer(t, newLog(t, c, k, time.Minute), stream.ProducerConfig{MaxPending: 10, OnFlush: onFlush,
		Linger: forGood})
	put(t, p, events(10)...)
	for range cap(others) {
		testkit.Must(t, await(t, others))
	}
	for p.Flush(ctx) != nil { // the first error since the last Flush
	}
	for len(errs) > 0 {
		testkit.Must(t, <-errs)
	}
	if got := stored(t, c, k); len(got) != 11 {
		t.Errorf("events of %d keys are stored, want 11: %v", len(got), got)
	}
}

func await(t *testing.T, errs <-chan error) error {
	t.Helper()
	select {
	case err := <-errs:
		return err
	case <-time.After(time.Minute):
		t.Fatal("the producer does not go on")
		return nil
	}
}

// silent is a Redis that answers no pipeline.
type silent struct {
	redis.Hook
	asked chan struct{}
}

func (s silent) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (s silent) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (s silent) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.asked <- struct{}{}
		<-ctx.Done()
		for _, cmd := range cmds {
			cmd.SetErr(ctx.Err())
		}
		return ctx.Err()
	}
}

// The context of Close ends the flush that is on its way, too.
func TestCloseEndsAFlush(t *testing.T) {
	c, k := streamtest.AnyRedis(t), newKeys(t, 1)
	redis := silent{asked: make(chan struct{}, 1)}
	c.AddHook(redis)
	var unknown int
	p, err := stream.NewProducer(newLog(t, c, k, time.Minute), stream.ProducerConfig{FlushTimeout: time.Hour,
		OnFlush: func(o stream.Outcome) { unknown += o.UnknownEvents }})
	testkit.Must(t, err)
	put(t, p, events(1)...)
	<-redis.asked
	closed := make(chan error, 1)
	go func() { closed <- p.Close(canceled(t)) }()
	if err := await(t, closed); !errors.Is(err, api.ErrOutcomeUnknown) || unknown != 1 {
		t.Errorf("Close: %v, %d unknown, want 1", err, unknown)
	}
}
