package stream_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// gate stops each flush before its events make room for others, until it is opened.
type gate struct {
	came chan stream.Outcome
	open chan struct{}
}

func newGate() gate { return gate{make(chan stream.Outcome, 100), make(chan struct{})} }

func (g gate) onFlush(o stream.Outcome) {
	g.came <- o
	<-g.open
}

// watched is a context that signals when a caller waits for its end.
type watched struct {
	context.Context
	waiting chan struct{}
}

func watch(ctx context.Context) watched { return watched{ctx, make(chan struct{}, 1)} }

func (w watched) Done() <-chan struct{} {
	select {
	case w.waiting <- struct{}{}:
	default:
	}
	return w.Context.Done()
}

func canceled(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestProducerFull(t *testing.T) {
	for _, fail := range []bool{true, false} {
		t.Run(fmt.Sprintf("FailWhenFull=%t", fail), func(t *testing.T) {
			log, c, k := embeddedLog(t)
			g := newGate()
			p := newProducer(t, log, stream.ProducerConfig{MaxPending: 3, FailWhenFull: fail, OnFlush: g.onFlush})
			put(t, p, events(1)...)
			<-g.came // events that are being sent count too
			put(t, p, events(3)[1:]...)
			more := api.Event{Key: "more", Count: 1}
			if fail {
				if err := p.Append(t.Context(), more); !errors.Is(err, api.ErrQueueFull) {
					t.Errorf("a fourth event: error %v, want %v", err, api.ErrQueueFull)
				}
				close(g.open)
				return
			}
			if err := p.Append(canceled(t), more); !errors.Is(err, context.Canceled) {
				t.Errorf("a fourth event of a caller that gave up: error %v, want %v", err, context.Canceled)
			}
			ctx, done := watch(t.Context()), make(chan error)
			go func() { done <- p.Append(ctx, more) }()
			<-ctx.waiting
			close(g.open)
			testkit.Must(t, <-done)
			testkit.Must(t, p.Flush(t.Context()))
			if got := stored(t, c, k); len(got) != 4 || len(got["more"]) != 1 {
				t.Errorf("events %v, want 4 and that which waited once", got)
			}
		})
	}
}

// A full producer does not linger.
func TestProducerDoesNotLingerWhenFull(t *testing.T) {
	log, _, _ := embeddedLog(t)
	p := newProducer(t, log, stream.ProducerConfig{MaxPending: 2, Linger: forGood})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 5 {
		if err := p.Append(ctx, api.Event{Key: "a", Count: 1}); err != nil {
			t.Fatalf("event %d: %v", i+1, err)
		}
	}
}

func TestProducerFlushTellsTheFirstErrorOnce(t *testing.T) {
	log, c, k := embeddedLog(t)
	testkit.Must(t, c.Set(t.Context(), k.Events(k.Partition("a")), "no stream", 0).Err())
	var last stream.Outcome
	p := newProducer(t, log, stream.ProducerConfig{Linger: forGood, OnFlush: func(o stream.Outcome) { last = o }})
	put(t, p, api.Event{Key: "a", Count: 1}, api.Event{Key: "a", Count: 2})
	if err := p.Flush(t.Context()); err == nil || errors.Is(err, api.ErrOutcomeUnknown) {
		t.Errorf("flush: error %v, want that of Redis", err)
	}
	if diff := cmp.Diff([]api.Event{{Key: "a", Count: 3}}, last.Refused); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if last.RefusedEvents != 2 || last.UnknownEvents != 0 {
		t.Errorf("%d events refused and %d unknown, want 2 and 0", last.RefusedEvents, last.UnknownEvents)
	}
	testkit.Must(t, p.Flush(t.Context()))
}

// A flush waits for the events that came before it, and not for events that others append meanwhile.
func TestProducerFlushIsNotHeldUpByLaterEvents(t *testing.T) {
	log, _, _ := embeddedLog(t)
	g := newGate()
	p := newProducer(t, log, stream.ProducerConfig{OnFlush: g.onFlush})
	put(t, p, api.Event{Key: "before", Count: 1})
	<-g.came
	ctx, done := watch(t.Context()), make(chan error, 1)
	go func() { done <- p.Flush(ctx) }()
	<-ctx.waiting
	put(t, p, api.Event{Key: "after", Count: 1})
	g.open <- struct{}{}
	<-g.came // the later event is being sent, and its flush does not end
	select {
	case err := <-done:
		testkit.Must(t, err)
	case <-time.After(time.Minute):
		t.Error("the flush waits for an event that came after it")
	}
	close(g.open)
}

// A caller that gives up on a flush leaves nothing behind: events linger as before.
func TestProducerFlushGivenUp(t *testing.T) {
	log, c, _ := embeddedLog(t)
	g := newGate()
	p := newProducer(t, log, stream.ProducerConfig{Linger: forGood, OnFlush: g.onFlush})
	put(t, p, api.Event{Key: "a", Count: 1})
	if err := p.Flush(canceled(t)); !errors.Is(err, context.Canceled) {
		t.Fatalf("flush: error %v, want %v", err, context.Canceled)
	}
	close(g.open)
	testkit.Must(t, p.Flush(t.Context()))
	for len(g.came) > 0 {
		<-g.came
	}
	for range 20 {
		put(t, p, api.Event{Key: "a", Count: 1})
		testkit.Must(t, c.Ping(t.Context()).Err()) // enough time for a wrong flush
	}
	testkit.Must(t, p.Flush(t.Context()))
	if o := <-g.came; o.Appended != 20 {
		t.Errorf("the first flush had %d of 20 events: it did not linger", o.Appended)
	}
}

func TestProducerClose(t *testing.T) {
	c, k := streamtest.Connect(t, streamtest.Redis(t)), newKeys(t, 4)
	warm(t, c)
	log := newLog(t, c, k, time.Minute)
	before := goleak.IgnoreCurrent()
	p, err := stream.NewProducer(log, stream.ProducerConfig{Linger: forGood})
	testkit.Must(t, err)
	put(t, p, events(10)...)
	testkit.Must(t, p.Close(t.Context()))
	if n := len(stored(t, c, k)); n != 10 {
		t.Errorf("%d of 10 events after Close", n)
	}
	if err := p.Append(t.Context(), events(1)[0]); !errors.Is(err, api.ErrClosed) {
		t.Errorf("append after Close: error %v, want %v", err, api.ErrClosed)
	}
	testkit.Must(t, p.Flush(t.Context()))
	testkit.Must(t, p.Close(t.Context()))
	goleak.VerifyNone(t, before)
}

// Close ends an Append that waits for room.
func TestProducerCloseWhileFull(t *testing.T) {
	log, c, k := embeddedLog(t)
	g := newGate()
	p := newProducer(t, log, stream.ProducerConfig{MaxPending: 1, OnFlush: g.onFlush})
	put(t, p, events(1)...)
	waits, appended, closed := watch(t.Context()), make(chan error), make(chan error)
	go func() { appended <- p.Append(waits, api.Event{Key: "late", Count: 1}) }()
	<-waits.waiting
	go func() { closed <- p.Close(t.Context()) }()
	streamtest.Eventually(t, "the producer is closed", func() (bool, string) {
		err := p.Append(canceled(t), api.Event{Key: "later", Count: 1})
		return errors.Is(err, api.ErrClosed), fmt.Sprint(err)
	})
	close(g.open)
	if err := <-appended; !errors.Is(err, api.ErrClosed) {
		t.Errorf("the waiting append: error %v, want %v", err, api.ErrClosed)
	}
	testkit.Must(t, <-closed)
	if got := stored(t, c, k); len(got) != 1 {
		t.Errorf("events %v, want that of before Close", got)
	}
}

// Close without the time to send the queued events reports each of them as refused before it returns.
func TestProducerCloseReportsWhatItDoesNotSend(t *testing.T) {
	log, c, k := embeddedLog(t)
	var outcomes []stream.Outcome
	p := newProducer(t, log, stream.ProducerConfig{Linger: forGood, MaxBatch: 6,
		OnFlush: func(o stream.Outcome) { outcomes = append(outcomes, o) }})
	put(t, p, events(5)...)
	testkit.Must(t, p.Flush(t.Context()))
	put(t, p, events(5)...)
	if err := p.Close(canceled(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("close: error %v, want %v", err, context.Canceled)
	}
	refused := 0
	for _, o := range outcomes {
		refused += o.RefusedEvents
		if o.RefusedEvents != len(o.Refused) || o.UnknownEvents != 0 || o.Appended+o.RefusedEvents != 5 {
			t.Errorf("outcome %+v", o)
		}
	}
	if got := stored(t, c, k); refused != 5 || len(got) != 5 {
		t.Errorf("%d events refused and %d stored of 10, want 5 and 5", refused, len(got))
	}
	testkit.Must(t, p.Close(t.Context())) // again
}

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
