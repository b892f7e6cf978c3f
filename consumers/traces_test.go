package consumers

import (
	"fmt"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// One fold counts events of several traces: its span belongs to the first trace, and each event has a span in its own
// trace, with links in both directions. The number of spans is bounded.
func TestSpansOfAFold(t *testing.T) {
	keys, err := stream.NewKeys("sc", 1)
	testkit.Must(t, err)
	recorder := tracetest.NewSpanRecorder()
	w := &worker{shared: &shared{Config: Config{Keys: keys,
		Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")}}}
	message := func(parent string) entry.Message {
		return entry.Message{ID: "1-0", Values: map[string]any{"key": "k", "traceparent": parent}}
	}
	trace := func(n int) string { return fmt.Sprintf("%032x", n) }
	var messages []entry.Message
	for _, bad := range []string{"", "x", "00-" + trace(0) + "-00f067aa0ba902b7-01", // a trace cannot be 0
		"00-" + trace(9) + "-00f067aa0ba902b7-00", // not sampled
		strings.Repeat("0", 1000)} {
		messages = append(messages, message(bad))
	}
	for n := range 2 * maxTraced {
		messages = append(messages, message("00-"+trace(n+1)+"-00f067aa0ba902b7-01"))
	}
	batches, folds := []eventlog.Batch{{Messages: messages}}, make([]counters.Batch, 1)
	_, end := w.startFold(t.Context(), batches, folds)
	if end(nil); !strings.HasPrefix(folds[0].TraceParent, "00-"+trace(1)+"-") {
		t.Errorf("transitions get %q, want the trace of the first event", folds[0].TraceParent)
	}
	ended := recorder.Ended()
	if len(ended) != maxTraced+1 {
		t.Fatalf("%d spans, want one per event up to %d, and the fold's", len(ended), maxTraced)
	}
	fold := ended[0]
	if fold.Name() != "FCALL fold" || len(fold.Links()) != maxTraced-1 {
		t.Errorf("%s has %d links, want one to each other event", fold.Name(), len(fold.Links()))
	}
	for n, span := range ended[1:] {
		if id := span.SpanContext().TraceID().String(); id != trace(n+1) || len(span.Links()) != 1 ||
			span.Links()[0].SpanContext.SpanID() != fold.SpanContext().SpanID() {
			t.Errorf("event %d: trace %s, links %v", n, id, span.Links())
		}
	}

	batches[0].Messages = messages[:5]
	ctx, end := w.startFold(t.Context(), batches, folds)
	if end(nil); ctx != t.Context() || folds[0].TraceParent != "" || len(recorder.Ended()) != maxTraced+1 {
		t.Errorf("spans without a trace: %q", folds[0].TraceParent)
	}
	w.Tracer = nil
	if n := testing.AllocsPerRun(100, func() { w.startFold(ctx, batches, folds) }); n > 1 {
		t.Errorf("%v allocations without a tracer", n)
	}
}
