package alerts

import (
	"context"
	"slices"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/tracing"
)

// spans are those of the messages that are being published and came with a trace. A span is as long as its
// message waits for its PubAck, with the messages of its subject before it.
type spans map[*nats.Msg]*published

type published struct {
	tracing.Span
	err error // of the last attempt
}

// start gives the message the trace context of its transition, or that of a span below it.
func (s spans) start(ctx context.Context, t trace.Tracer, x api.Transition, m *nats.Msg) {
	parent := tracing.Parse(x.TraceParent)
	if !parent.IsValid() {
		return
	}
	m.Header["traceparent"] = []string{x.TraceParent}
	_, span := tracing.Start(trace.ContextWithRemoteSpanContext(ctx, parent), t, "publish "+string(x.State),
		trace.SpanKindProducer, attribute.String("messaging.system", "nats"),
		attribute.String("messaging.message.id", x.ID), attribute.String("streamcounter.rule", x.Rule),
		attribute.Int("streamcounter.level", x.Level))
	if text := tracing.Format(span.Context()); text != "" {
		m.Header["traceparent"] = []string{text}
		s[m] = &published{Span: span}
	}
}

// keep ends the spans of messages that are not left; the others may fail with err.
func (s spans) keep(left []*nats.Msg, err error) {
	for m, p := range s {
		if slices.Contains(left, m) {
			p.err = err
			continue
		}
		p.End(nil)
		delete(s, m)
	}
}

func (s spans) end() {
	for _, p := range s {
		p.End(p.err)
	}
}
