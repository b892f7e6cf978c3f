package tracing

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// SchemaURL names the version of OpenTelemetry's semantic conventions that all spans follow. No name, attribute or
// status of a span holds a counted key, which can be personal data: so a path stands without the key in it, and an
// error is told by its type alone, as its text can name a key.
const SchemaURL = semconv.SchemaURL

// StartScript starts the span of a script call: what Redis does for a check, or a fold.
// units are the checks or events that it is for.
func StartScript(ctx context.Context, t trace.Tracer, script string, units int) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	attributes := []attribute.KeyValue{semconv.DBSystemNameRedis, semconv.DBOperationName("FCALL"),
		semconv.DBStoredProcedureName(script)}
	if units > 1 { // one is no batch
		attributes = append(attributes, semconv.DBOperationBatchSize(units))
	}
	return Start(ctx, t, "FCALL "+script, trace.SpanKindClient, attributes...)
}

// StartAppend starts the span of events that are appended to the streams of which `streams` is the template.
func StartAppend(ctx context.Context, t trace.Tracer, streams string, events int) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	attributes := append(messaging("redis", "XADD", semconv.MessagingOperationTypeSend),
		semconv.MessagingDestinationTemplate(streams))
	if events > 1 {
		attributes = append(attributes, semconv.MessagingBatchMessageCount(events))
	}
	return Start(ctx, t, "XADD "+streams, trace.SpanKindProducer, attributes...)
}

// StartProcess starts the span of one event that is folded: the entry `id` of a stream, read by a group.
func StartProcess(ctx context.Context, t trace.Tracer, stream, group, id string, partition int) (context.Context,
	Span) {
	if t == nil {
		return ctx, Span{}
	}
	return Start(ctx, t, "process "+stream, trace.SpanKindConsumer, append(
		messaging("redis", "process", semconv.MessagingOperationTypeProcess), semconv.MessagingDestinationName(stream),
		semconv.MessagingDestinationPartitionID(strconv.Itoa(partition)), semconv.MessagingConsumerGroupName(group),
		semconv.MessagingMessageID(id))...)
}

// StartPublish starts the span of one message to a JetStream stream. The last token of its subject, the key, is left
// out, and so is the message's id, which has the key in it.
func StartPublish(ctx context.Context, t trace.Tracer, stream, subject string, more ...attribute.KeyValue) (
	context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	template := subject[:strings.LastIndexByte(subject, '.')+1] + "{key}"
	attributes := append(messaging("nats", "publish", semconv.MessagingOperationTypeSend),
		semconv.MessagingDestinationName(stream), semconv.MessagingDestinationTemplate(template))
	return Start(ctx, t, "publish "+template, trace.SpanKindProducer, append(attributes, more...)...)
}

func messaging(system, operation string, kind attribute.KeyValue) []attribute.KeyValue {
	return []attribute.KeyValue{semconv.MessagingSystemKey.String(system), semconv.MessagingOperationName(operation),
		kind}
}

// HideKeys takes out of the span of a request what its path and its headers say: otelhttp records the path with the
// key in it, and believes any X-Forwarded-For. route is empty for a path that is not there.
func HideKeys(ctx context.Context, route, peer string) {
	if route == "" {
		route = "REDACTED"
	}
	trace.SpanFromContext(ctx).SetAttributes(semconv.URLPath(route), semconv.ClientAddress(peer))
}

// SetClient records the address of a client that trusted proxies vouch for.
func SetClient(ctx context.Context, address string) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(semconv.ClientAddress(address))
	}
}

// errorAttributes tell the type of an error, and what code a server of Redis answered.
func errorAttributes(err error) []attribute.KeyValue {
	var refused interface{ RedisError() }
	switch {
	case errors.As(err, &refused):
		text, _ := refused.(error) // it was found by errors.As
		code, _, _ := strings.Cut(text.Error(), " ")
		return []attribute.KeyValue{semconv.ErrorTypeKey.String(code), semconv.DBResponseStatusCode(code)}
	case errors.Is(err, context.DeadlineExceeded):
		return []attribute.KeyValue{semconv.ErrorTypeKey.String("timeout")}
	case errors.Is(err, context.Canceled):
		return []attribute.KeyValue{semconv.ErrorTypeKey.String("canceled")}
	}
	return []attribute.KeyValue{semconv.ErrorType(err)}
}
