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

// spans holds the spans of messages that are being published and came with a trace. A span lasts until the PubAck of
// its message. It includes the wait for earlier messages of the same subject.
type spans struct {
	open map[*nats.Msg]tracing.Span
	err  error // of the last attempt
}

// start puts the trace context of its transition into the message, or that of a new span below it if it is sampled.
func (s *spans) start(ctx context.Context, c PublisherConfig, x api.Transition, m *nats.Msg) {
	parent := tracing.Parse(x.TraceParent, x.TraceState)
	if !parent.IsValid() {
		return
	}
	giveTrace(m, parent)
	stored, alerts := StreamNames(c.Prefix)
	if !x.IsThrottle() {
		stored = alerts
	}
	_, span := tracing.StartPublish(trace.ContextWithRemoteSpanContext(ctx, parent), c.Tracer, stored, m.Subject,
		attribute.String("streamcounter.rule", x.Rule), attribute.String("streamcounter.state", string(x.State)),
		attribute.Int("streamcounter.level", x.Level))
	if own := span.Context(); own.IsSampled() {
		giveTrace(m, own)
		s.open[m] = span
	}
}

// giveTrace puts a trace context into the message's headers, so that subscribers can continue the trace.
func giveTrace(m *nats.Msg, c trace.SpanContext) {
	parent, state := tracing.Format(c)
	m.Header["traceparent"] = []string{parent}
	if state != "" {
		m.Header["tracestate"] = []string{state}
	}
}

// keep ends the spans of messages that are not left. The spans of the others end with err if they are given up.
func (s *spans) keep(left []*nats.Msg, err error) {
	s.err = err
	for m, span := range s.open {
		if !slices.Contains(left, m) {
			span.End(nil)
			delete(s.open, m)
		}
	}
}

func (s *spans) end() {
	for _, span := range s.open {
		span.End(s.err)
	}
}
