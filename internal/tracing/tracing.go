// Package tracing starts the spans of OpenTelemetry traces of checks and events. Its functions take a nil
// tracer, and then start nothing and allocate nothing. conventions.go has the names and attributes of all
// spans; package otlp sends traces.
package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Name is the scope of all tracers.
const Name = "github.com/streamcounter/streamcounter"

// maxLinks bounds the links of a span; more are left out.
const maxLinks = 128

// Span is a span that may be nil.
type Span struct{ span trace.Span }

// Start starts a span below that of ctx.
func Start(ctx context.Context, t trace.Tracer, name string, kind trace.SpanKind,
	attributes ...attribute.KeyValue) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	ctx, span := t.Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(attributes...))
	return ctx, Span{span}
}

// Shared returns a context for work that is done for several callers at once. A span that is started with it belongs
// to the trace of the first caller, so that this trace is complete. others are the spans of the other callers, for
// Link. Callers whose traces are not sampled are left out.
func Shared(ctx context.Context, callers []trace.SpanContext) (joined context.Context, others []trace.SpanContext) {
	first := true
	for _, c := range callers {
		switch {
		case !c.IsSampled() || !c.IsValid():
		case first:
			ctx, first = trace.ContextWithRemoteSpanContext(ctx, c), false
		case len(others) < maxLinks:
			others = append(others, c)
		}
	}
	return ctx, others
}

var w3c propagation.TraceContext

const (
	parentField = "traceparent"
	stateField  = "tracestate"
)

// maxState bounds a tracestate, in bytes: the length that W3C's recommendation says to pass on.
const maxState = 512

// Parse reads a W3C trace context: its traceparent and its tracestate, which may be empty. If the traceparent is not
// valid, or not sampled, the result is a context that is not valid; a tracestate that is not valid is left out.
func Parse(parent, state string) trace.SpanContext {
	if len(parent) < 55 || len(parent) > 128 {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{parentField: parent}
	if len(state) <= maxState {
		carrier[stateField] = state
	}
	c := trace.SpanContextFromContext(w3c.Extract(context.Background(), carrier))
	if !c.IsSampled() {
		return trace.SpanContext{}
	}
	return c
}

// Format is the opposite of Parse: empty for a context that is not valid or not sampled.
func Format(c trace.SpanContext) (parent, state string) {
	if !c.IsValid() || !c.IsSampled() {
		return "", ""
	}
	carrier := propagation.MapCarrier{}
	w3c.Inject(trace.ContextWithSpanContext(context.Background(), c), carrier)
	return carrier[parentField], carrier[stateField]
}

// Link links the span to others.
func (s Span) Link(others ...trace.SpanContext) {
	if s.span == nil {
		return
	}
	for _, c := range others {
		if c.IsValid() {
			s.span.AddLink(trace.Link{SpanContext: c})
		}
	}
}

// Context returns the context of the span; without a span it is not valid.
func (s Span) Context() trace.SpanContext {
	if s.span == nil {
		return trace.SpanContext{}
	}
	return s.span.SpanContext()
}

// End ends the span, as failed if err is not nil.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, "")
		s.span.SetAttributes(errorAttributes(err)...)
	}
	s.span.End()
}
