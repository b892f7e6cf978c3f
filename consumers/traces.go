package consumers

import (
	"context"

	"go.opentelemetry.io/otel/trace"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/tracing"
)

// maxTraced bounds the events of one fold that have a span.
const maxTraced = 128

// startFold starts the spans of a fold: one per event that came with a trace, and one for the script call. The
// script's span belongs to the trace of the first of these events and has links to the spans of the others. Each
// event's span has a link to the script's span. folds get the trace context of the script's span, for the transitions.
// end ends the spans.
func (w *worker) startFold(ctx context.Context, batches []eventlog.Batch, folds []counters.Batch) (
	traced context.Context, end func(error)) {
	if w.Tracer == nil {
		return ctx, func(error) {}
	}
	var spans []tracing.Span
	contexts, messages := []trace.SpanContext{}, 0
	for _, b := range batches {
		messages += len(b.Messages)
		for _, m := range b.Messages {
			text, state := m.Trace()
			if text == "" || len(spans) == maxTraced {
				continue
			}
			parent := tracing.Parse(text, state)
			if !parent.IsValid() {
				continue
			}
			_, span := tracing.StartProcess(trace.ContextWithRemoteSpanContext(ctx, parent), w.Tracer,
				w.Keys.Events(b.Partition), eventlog.Group, m.ID, b.Partition)
			spans, contexts = append(spans, span), append(contexts, span.Context())
		}
	}
	traced, others := tracing.Shared(ctx, contexts)
	var script tracing.Span
	if traced != ctx { // otherwise nothing is sampled
		traced, script = tracing.StartScript(traced, w.Tracer, "fold", messages)
	}
	script.Link(others...)
	for _, span := range spans {
		span.Link(script.Context())
	}
	for i := range folds {
		folds[i].TraceParent, folds[i].TraceState = tracing.Format(script.Context())
	}
	return traced, func(err error) {
		script.End(err)
		for _, span := range spans {
			span.End(err)
		}
	}
}
