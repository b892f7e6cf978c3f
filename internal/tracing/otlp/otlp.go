// Package otlp sends traces over OTLP. It is separate from package tracing, because its exporters are a large
// dependency for a program that sends no traces.
package otlp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// Process names the process in its traces, unless OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say something else.
type Process struct{ Service, Version, Instance string }

// NewProvider returns a provider that sends traces over OTLP, as the OTEL_ variables of the environment say. It
// returns nil if traces are off: OTEL_SDK_DISABLED is true, OTEL_TRACES_EXPORTER is none, or OTEL_TRACES_EXPORTER and
// OTEL_EXPORTER_OTLP_ENDPOINT (and its variable for traces) are empty. The exporters and the SDK read most of the
// variables themselves. The caller must call Shutdown, which sends the remaining traces.
//
// The choice of exporter is here and not go.opentelemetry.io/contrib/exporters/autoexport,
// which would bring twelve modules for logs, metrics and consoles.
func NewProvider(ctx context.Context, env func(string) string, p Process, log *slog.Logger,
) (*sdktrace.TracerProvider, error) {
	on, err := enabled(env)
	if err != nil || !on {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("sending traces failed", "error", err)
	}))
	client, err := newClient(env)
	if err != nil {
		return nil, err
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("OTLP exporter: %w", err)
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithSchemaURL(semconv.SchemaURL),
		resource.WithAttributes(semconv.ServiceName(p.Service), semconv.ServiceVersion(p.Version),
			semconv.ServiceInstanceID(p.Instance)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)), nil
}

func enabled(env func(string) string) (bool, error) {
	if strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch exporter := env("OTEL_TRACES_EXPORTER"); exporter {
	case "":
		return cmp.Or(env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), env("OTEL_EXPORTER_OTLP_ENDPOINT")) != "", nil
	case "none":
		return false, nil
	case "otlp":
		return true, nil
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER is %q, expected otlp or none", exporter)
	}
}

func newClient(env func(string) string) (otlptrace.Client, error) {
	name := "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	if env(name) == "" {
		name = "OTEL_EXPORTER_OTLP_PROTOCOL"
	}
	switch protocol := cmp.Or(env(name), "http/protobuf"); protocol {
	case "http/protobuf":
		return otlptracehttp.NewClient(), nil
	case "grpc":
		return otlptracegrpc.NewClient(), nil
	default:
		return nil, fmt.Errorf("%s is %q, expected http/protobuf or grpc", name, protocol)
	}
}
