package consumers

import (
	"context"

	"go.opentelemetry.io/otel/trace"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/tracing"
)

// maxTraced bounds the events of one fold that have a span.
const maxTraced = 128

// foldSpans are the spans of one fold: one per event that came with a trace, and one for the script call. The
// script's span belongs to the trace of the first of these events and has links to the spans of the others. Each
// event's span has a link to the script's span.
type foldSpans struct {
	script tracing.Span
	events []tracing.Span
}

// startFold starts the spans of a fold.
func (f *folder) startFold(ctx context.Context, batches ...eventlog.Batch) (context.Context, *foldSpans) {
	if f.tracer == nil {
		return ctx, nil
	}
	s, contexts, messages := &foldSpans{}, []trace.SpanContext{}, 0
	for _, b := range batches {
		messages += len(b.Messages)
		for _, m := range b.Messages {
			text, state := m.Trace()
			if text == "" || len(s.events) == maxTraced {
				continue
			}
			parent := tracing.Parse(text, state)
			if !parent.IsValid() {
				continue
			}
			_, span := tracing.StartProcess(trace.ContextWithRemoteSpanContext(ctx, parent), f.tracer,
				f.keys.Events(b.Partition), eventlog.Group, m.ID, b.Partition)
			s.events, contexts = append(s.events, span), append(contexts, span.Context())
		}
	}
	joined, others := tracing.Shared(ctx, contexts)
	if joined == ctx {
		return ctx, s // nothing is sampled
	}
	joined, s.script = tracing.StartScript(joined, f.tracer, "fold", messages)
	s.script.Link(others...)
	for _, span := range s.events {
		span.Link(s.script.Context())
	}
	return joined, s
}

// trace returns the trace context for the transitions, empty if no event has one.
func (s *foldSpans) trace() (parent, state string) {
	if s == nil {
		return "", ""
	}
	return tracing.Format(s.script.Context())
}

func (s *foldSpans) end(err error) {
	if s == nil {
		return
	}
	s.script.End(err)
	for _, span := range s.events {
		span.End(err)
	}
}
