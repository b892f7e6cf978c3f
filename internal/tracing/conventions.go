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
// status of a span contains a counted key, which can be personal data. So a path is recorded without the key in it,
// and an error only by its type, because its text can contain a key.
const SchemaURL = semconv.SchemaURL

// StartScript starts the span of a script call: the work of Redis for a check, or a fold. units is the number of
// checks or events in the call.
func StartScript(ctx context.Context, t trace.Tracer, script string, units int) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	attributes := []attribute.KeyValue{semconv.DBSystemNameRedis, semconv.DBOperationName("FCALL"),
		semconv.DBStoredProcedureName(script)}
	if units > 1 { // one unit is not a batch
		attributes = append(attributes, semconv.DBOperationBatchSize(units))
	}
	return Start(ctx, t, "FCALL "+script, trace.SpanKindClient, attributes...)
}

// StartAppend starts the span of events that are appended to streams. `streams` is the template of the streams'
// names.
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
	return Start(ctx, t, "process "+stream, trace.SpanKindConsumer, append(
		messaging("redis", "process", semconv.MessagingOperationTypeProcess), semconv.MessagingDestinationName(stream),
		semconv.MessagingDestinationPartitionID(strconv.Itoa(partition)), semconv.MessagingConsumerGroupName(group),
		semconv.MessagingMessageID(id))...)
}

// StartPublish starts the span of one message to a JetStream stream. The last token of its subject, which is the key,
// is left out, and so is the message's id, which contains the key.
func StartPublish(ctx context.Context, t trace.Tracer, stream, subject string, more ...attribute.KeyValue) (
	context.Context, Span) {
	template := subject[:strings.LastIndexByte(subject, '.')+1] + "{key}"
	attributes := append(messaging("nats", "publish", semconv.MessagingOperationTypeSend),
		semconv.MessagingDestinationName(stream), semconv.MessagingDestinationTemplate(template))
	return Start(ctx, t, "publish "+template, trace.SpanKindProducer, append(attributes, more...)...)
}

func messaging(system, operation string, kind attribute.KeyValue) []attribute.KeyValue {
	return []attribute.KeyValue{semconv.MessagingSystemKey.String(system), semconv.MessagingOperationName(operation),
		kind}
}

// HideKeys replaces the path and the client address in the span of a request: otelhttp records the path with the key
// in it, and trusts any X-Forwarded-For header. route is empty for a path that does not exist.
func HideKeys(ctx context.Context, route, peer string) {
	if route == "" {
		route = "REDACTED"
	}
	trace.SpanFromContext(ctx).SetAttributes(semconv.URLPath(route), semconv.ClientAddress(peer))
}

// SetClient records the address of a client that trusted proxies have reported.
func SetClient(ctx context.Context, address string) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(semconv.ClientAddress(address))
	}
}

// errorAttributes returns the type of an error, and the error code if a Redis server answered with one.
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
