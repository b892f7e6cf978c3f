package check

import (
	"context"
	"slices"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/streamcounter/streamcounter/internal/counters"
)

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
