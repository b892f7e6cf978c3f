package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

// server plays Redis for a gatherer: each run waits until the test lets it end. The clock is that of synctest.
type server struct {
	t    *testing.T
	g    *gatherer
	runs chan [][]counters.Request
	end  chan error
	// bad is a key whose counter is broken: a run that holds it fails with `failure`.
	bad     string
	failure error
	// partly: the calls before it are answered nevertheless.
	partly bool

	began time.Time
	mu    sync.Mutex
	told  map[string]told // key → what its caller was told
}

// told is when a caller was answered, with the cost that it asked for, or the error.
type told struct {
	after   time.Duration
	cost    int64
	err     error
	notSent bool
}

// gathered runs a test in a bubble.
func gathered(t *testing.T, timeout time.Duration, tracer trace.Tracer, test func(t *testing.T, s *server)) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{t: t, runs: make(chan [][]counters.Request, 100), end: make(chan error), began: time.Now(),
			told: map[string]told{}}
		s.g = &gatherer{send: s.run, timeout: timeout, tracer: tracer}
		test(t, s)
		if s.g.calls != 0 || s.g.busy || len(s.runs) != 0 {
			t.Errorf("at rest %d calls are thought to wait, busy %t, and %d runs are left", s.g.calls, s.g.busy,
				len(s.runs))
		}
	})
}

func (s *server) run(_ context.Context, calls [][]counters.Request) ([]counters.Verdict, error) {
	s.runs <- calls
	if err := <-s.end; err != nil {
		return nil, err
	}
	out := make([]counters.Verdict, len(calls))
	for i, c := range calls {
		if s.bad != "" && c[0].Key == s.bad {
			if s.partly {
				return out, s.failure
			}
			return nil, s.failure
		}
		// Transitions shows whose verdict it is.
		out[i] = counters.Verdict{Allowed: true, Transitions: c[0].Cost, Items: make([]windows.KeyState, 1)}
	}
	return out, nil
}

func single(key string, cost int64) [][]counters.Request {
	return [][]counters.Request{{{Key: key, Cost: cost}}}
}

// calls starts a caller with calls. The first call is the name of the caller.
func (s *server) calls(ctx context.Context, within time.Duration, calls [][]counters.Request) {
	until := time.Now().Add(within)
	go func() {
		v, err := s.g.ask(ctx, until, calls)
		s.mu.Lock()
		defer s.mu.Unlock()
		one := told{after: time.Since(s.began), err: err, notSent: errors.Is(err, api.ErrNotSent)}
		if err == nil {
			one.cost = v[0].Transitions
		}
		s.told[calls[0][0].Key] = one
	}()
	synctest.Wait()
}

func (s *server) ask(within time.Duration, keys ...string) {
	for _, key := range keys {
		s.calls(s.t.Context(), within, single(key, int64(len(key))))
	}
}

// takes expects a run under way of these keys, and ends it.
func (s *server) takes(err error, want ...string) {
	s.t.Helper()
	var got []string
	select {
	case calls := <-s.runs:
		for _, call := range calls {
			got = append(got, call[0].Key)
		}
	default:
	}
	if !slices.Equal(got, want) {
		s.t.Fatalf("a run of %q, want %q", got, want)
	}
	s.end <- err
	synctest.Wait()
}

// answered expects which callers were answered, each with its own cost. The errors of the others wrap the given
// error.
func (s *server) answered(keys string, failed error) {
	s.t.Helper()
	for key, one := range s.told {
		good := slices.Contains(strings.Fields(keys), key)
		if good && (one.err != nil || one.cost != int64(len(key))) || !good && !errors.Is(one.err, failed) {
			s.t.Errorf("%s was told %+v", key, one)
		}
	}
}

// The gatherer asks an idle server at once. Calls that come during a run share the next run, and each caller gets its
// own answer.
func TestCallsThatWaitShareARun(t *testing.T) {
	gathered(t, time.Minute, nil, func(t *testing.T, s *server) {
		s.ask(time.Hour, "first", "2", "33", "444", "5555")
		s.takes(nil, "first")
		s.takes(nil, "2", "33", "444", "5555")
		s.ask(time.Hour, "idle again")
		s.takes(nil, "idle again")
		s.answered("first 2 33 444 5555 idle again", nil)
	})
}

// A caller who leaves before its call is sent is not charged.
func TestACallThatWasNotSentIsTakenBack(t *testing.T) {
	gathered(t, time.Minute, nil, func(t *testing.T, s *server) {
		ctx, leave := context.WithCancel(t.Context())
		s.ask(time.Hour, "first")
		s.calls(ctx, time.Hour, single("leaves", 1))
		s.ask(time.Hour, "stays")
		leave()
		synctest.Wait()
		s.takes(nil, "first")
		s.takes(nil, "stays")
		s.answered("first stays", context.Canceled)
	})
}

// The deadline of a call also holds if the run that it waits for, or is part of, hangs.
func TestACallEndsInTimeBesideARunThatHangs(t *testing.T) {
	gathered(t, time.Minute, nil, func(t *testing.T, s *server) {
		s.ask(time.Minute, "first")
		s.ask(3*time.Second, "sent late")
		s.ask(2*time.Second, "sent") // an earlier deadline than that of who came before
		s.ask(time.Minute, "sent and answered")
		s.takes(nil, "first")
		s.ask(4*time.Second, "waits")
		s.ask(time.Minute, "waits and is answered")
		time.Sleep(10 * time.Second) // the run hangs
		s.takes(nil, "sent late", "sent", "sent and answered")
		s.takes(nil, "waits and is answered")
		for key, want := range map[string]told{"first": {},
			"sent":                  {after: 2 * time.Second, err: context.DeadlineExceeded},
			"sent late":             {after: 3 * time.Second, err: context.DeadlineExceeded},
			"sent and answered":     {after: 10 * time.Second},
			"waits":                 {after: 4 * time.Second, err: context.DeadlineExceeded, notSent: true},
			"waits and is answered": {after: 10 * time.Second}} {
			if got, ok := s.told[key]; !ok || got.after != want.after || !errors.Is(got.err, want.err) ||
				got.notSent != want.notSent {
				t.Errorf("%s: %+v, want %+v", key, got, want)
			}
		}
	})
}

// One broken key does not prevent the answers of other callers. A run can fail after it answered some calls. Those are
// charged, so the gatherer gives their callers the answers and does not ask again. It asks again for the other calls
// only if Redis refused the run: a server that does not answer is not asked again for each caller.
func TestARunThatFails(t *testing.T) {
	refused, late := streamtest.Refusal("WRONGTYPE of broken"), context.DeadlineExceeded
	for _, c := range []struct {
		partly   bool
		failure  error
		again    []string
		answered string
	}{
		{false, refused, []string{"a", "broken", "b"}, "first a b"},
		{true, refused, []string{"broken", "b"}, "first a b"},
		{true, late, nil, "first a"}, {false, late, nil, "first"},
	} {
		gathered(t, time.Minute, nil, func(t *testing.T, s *server) {
			s.bad, s.partly, s.failure = "broken", c.partly, c.failure
			s.ask(time.Hour, "first", "a", "broken", "b")
			s.takes(nil, "first")
			s.takes(nil, "a", "broken", "b")
			for _, key := range c.again {
				s.takes(nil, key)
			}
			s.answered(c.answered, c.failure)
		})
	}
}

// Under overload a call that would be answered too late is not sent, so that the others are answered in time.
func TestACallWithTooLittleTimeIsNotSent(t *testing.T) {
	gathered(t, time.Second, nil, func(t *testing.T, s *server) {
		run := func(lasts time.Duration, want ...string) {
			t.Helper()
			time.Sleep(lasts)
			s.takes(nil, want...)
		}
		s.ask(time.Second, "first", "a")
		run(0, "first")
		s.ask(400*time.Millisecond, "b")
		run(300*time.Millisecond, "a") // one run that takes long says nothing of the next
		s.ask(500*time.Millisecond, "late")
		s.ask(800*time.Millisecond, "in time")
		run(300*time.Millisecond, "b")
		if late := s.told["late"]; !late.notSent || !errors.Is(late.err, context.DeadlineExceeded) {
			t.Errorf("a call with 200 ms left after two runs of 300 ms was told %+v", late)
		}
		s.ask(1400*time.Millisecond, "c")
		run(900*time.Millisecond, "in time")
		s.ask(1500*time.Millisecond, "half")
		run(900*time.Millisecond, "c") // no runs keep anybody away who has half of the timeout
		run(900*time.Millisecond, "half")
		if half := s.told["half"]; half.notSent {
			t.Errorf("a call that was sent and not answered in time was told %+v", half)
		}
		s.ask(time.Second, "idle") // a single call is a run too
		s.ask(100*time.Millisecond, "d")
		run(0, "idle")
		run(0, "d")
		s.answered("first a idle d", context.DeadlineExceeded)
	})
}

// The gatherer bounds how many calls wait, how many calls a run has, and how many keys: a run of many keys would take
// longer than its callers wait.
func TestGatheringIsBounded(t *testing.T) {
	many := func(calls, keys int) (list [][]counters.Request) {
		for range calls {
			list = append(list, make([]counters.Request, keys))
		}
		return list
	}
	for _, c := range []struct{ calls, keys, waiting, inARun int }{
		{100, 1, maxWaiting / 100, 2}, {1, 100, 200, maxGatheredKeys / 100},
	} {
		gathered(t, time.Minute, nil, func(t *testing.T, s *server) {
			s.ask(time.Hour, "first")
			for i := range c.waiting {
				calls := many(c.calls, c.keys)
				calls[0][0].Key = fmt.Sprint(i)
				s.calls(t.Context(), time.Hour, calls)
			}
			if c.calls > 1 {
				s.ask(time.Hour, "one too many")
				if err := s.told["one too many"].err; !errors.Is(err, errTooManyWait) {
					t.Errorf("one too many: %v", err)
				}
			}
			s.takes(nil, "first")
			for left := c.waiting; left > 0; {
				n := len(<-s.runs)
				if n != min(left, c.inARun)*c.calls {
					t.Fatalf("a run of %d calls where %d of %d wait", n, left, c.calls)
				}
				left -= n / c.calls
				s.end <- nil
				synctest.Wait()
			}
		})
	}
}

// Calls that share a run have one span of Redis: in the trace of the first of them, linked with
// the others, and each of them with it.
func TestSharedRunIsLinked(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	gathered(t, time.Minute, tracer, func(t *testing.T, s *server) {
		for _, name := range []string{"first", "second", "third"} {
			ctx, span := tracer.Start(t.Context(), name)
			s.calls(ctx, time.Hour, single(name, 1))
			defer span.End()
		}
		s.takes(nil, "first")
		s.takes(nil, "second", "third")
	})
	byTrace := map[trace.TraceID][]sdktrace.ReadOnlySpan{}
	names := map[string]trace.TraceID{}
	for _, span := range spans.Ended() {
		id := span.SpanContext().TraceID()
		byTrace[id] = append(byTrace[id], span)
		if !span.Parent().IsValid() {
			names[span.Name()] = id
		}
	}
	find := func(call, name string) sdktrace.ReadOnlySpan {
		t.Helper()
		list := byTrace[names[call]]
		i := slices.IndexFunc(list, func(s sdktrace.ReadOnlySpan) bool { return s.Name() == name })
		if i < 0 {
			t.Fatalf("%s has no span %q", call, name)
		}
		return list[i]
	}
	const waits = "wait for a shared script call"
	find("first", "FCALL check")
	redis, second, third := find("second", "FCALL check"), find("second", waits), find("third", waits)
	if redis.Parent().SpanID() != second.SpanContext().SpanID() {
		t.Error("the shared run is not below the first that waited")
	}
	linked := func(from, to sdktrace.ReadOnlySpan) bool {
		return slices.ContainsFunc(from.Links(), func(l sdktrace.Link) bool {
			return l.SpanContext.SpanID() == to.SpanContext().SpanID()
		})
	}
	if !linked(redis, third) || !linked(third, redis) || !linked(second, redis) {
		t.Errorf("links: run to third %t, third to run %t, second to run %t; want all", linked(redis, third),
			linked(third, redis), linked(second, redis))
	}
}

// Without traces, a call to Redis allocates no more than before traces existed: four times for its deadline, and once
// for the next caller.
func TestNoTracesAllocateNothingMore(t *testing.T) {
	verdicts, never := []counters.Verdict{{Allowed: true}}, time.Now().Add(time.Hour)
	g, calls := &gatherer{timeout: time.Minute, send: func(context.Context, [][]counters.Request) ([]counters.Verdict,
		error) {
		return verdicts, nil
	}}, single("a", 1)
	if n := testing.AllocsPerRun(1000, func() { _, _ = g.ask(context.Background(), never, calls) }); n != 5 {
		t.Errorf("%v allocations, want 5", n)
	}
}
