package check

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/streamcounter/streamcounter/windows"
)

// Calls that share a run have one span of Redis: in the trace of the first of them, linked with
// the others, and each of them with it.
func TestSharedRunIsLinked(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	s := newServer()
	g := newGatherer(time.Minute, tracer, s.run)
	var callers sync.WaitGroup
	call := func(name string) {
		ctx, span := tracer.Start(t.Context(), name)
		callers.Add(1)
		asks(t, g, ctx, name, 1, func(windows.Verdict, error) {
			span.End()
			callers.Done()
		})
	}
	call("first")
	<-s.runs
	call("second")
	call("third")
	s.end <- nil
	<-s.runs
	s.end <- nil
	callers.Wait()
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
	find("first", "EVALSHA check")
	redis, second, third := find("second", "EVALSHA check"), find("second", waits), find("third", waits)
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

// answersAtOnce stands in for Redis where only the price of what is before it counts.
func answersAtOnce() func(context.Context, [][]windows.Request) ([]windows.Verdict, error) {
	verdicts := []windows.Verdict{{Allowed: true}}
	return func(context.Context, [][]windows.Request) ([]windows.Verdict, error) { return verdicts, nil }
}

// Without traces a call on its way to Redis allocates what it did before there were any: four times for its
// deadline, and once for who comes next.
func TestNoTracesAllocateNothingMore(t *testing.T) {
	g, calls := newGatherer(time.Minute, nil, answersAtOnce()), single("a", 1)
	if n := testing.AllocsPerRun(1000, func() { _, _ = g.do(context.Background(), never, calls) }); n != 5 {
		t.Errorf("%v allocations, want 5", n)
	}
}

// BenchmarkTraces is what the way to Redis costs, and not Redis: without traces, with traces that are not
// sampled, and with spans.
func BenchmarkTraces(b *testing.B) {
	for _, with := range []struct {
		name   string
		tracer trace.Tracer
	}{
		{"none", nil},
		{"not sampled", sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("")},
		{"sampled", sdktrace.NewTracerProvider().Tracer("")},
	} {
		b.Run(with.name, func(b *testing.B) {
			g, calls := newGatherer(time.Minute, with.tracer, answersAtOnce()), single("a", 1)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = g.do(context.Background(), never, calls)
			}
		})
	}
}
