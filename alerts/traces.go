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
func (s spans) start(ctx context.Context, c PublisherConfig, x api.Transition, m *nats.Msg) {
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
		s[m] = &published{Span: span}
	}
}

// giveTrace puts a trace context into the message's headers, for subscribers to go on with.
func giveTrace(m *nats.Msg, c trace.SpanContext) {
	parent, state := tracing.Format(c)
	m.Header["traceparent"] = []string{parent}
	if state != "" {
		m.Header["tracestate"] = []string{state}
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
