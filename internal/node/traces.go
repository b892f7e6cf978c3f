package node

import (
	"context"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/streamcounter/streamcounter/internal/tracing"
	"github.com/streamcounter/streamcounter/internal/tracing/otlp"
)

// openTraces creates the provider that sends traces, if the OTEL_ variables ask for it. Otherwise there is no
// provider and no tracer, and no part of OpenTelemetry runs.
func (n *node) openTraces(ctx context.Context) error {
	p, err := otlp.NewProvider(ctx, os.Getenv,
		otlp.Process{Service: "streamcounter", Version: n.build.Version, Instance: n.name}, n.log)
	if err != nil || p == nil {
		return err
	}
	n.traces, n.tracer = p, p.Tracer(tracing.Name, trace.WithInstrumentationVersion(n.build.Version),
		trace.WithSchemaURL(tracing.SchemaURL))
	n.atStop(func() {
		by := n.stopBy
		if by.IsZero() { // the start failed
			by = time.Now().Add(n.config.Stop)
		}
		within, cancel := context.WithDeadline(context.Background(), by)
		defer cancel()
		if err := p.Shutdown(within); err != nil {
			n.log.Warn("the last traces were not sent", "error", err)
		}
	})
	n.log.Info("traces are sent over OTLP")
	return nil
}

// traceHTTP makes a span for each request to /v1/ and /json. route returns the path for the span's name, without a
// key in it. It returns nothing for a path that does not exist.
func (n *node) traceHTTP(handler http.Handler, route func(*http.Request) string) http.Handler {
	if n.tracer == nil {
		return handler
	}
	inner := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, _, _ := net.SplitHostPort(r.RemoteAddr)
		tracing.HideKeys(r.Context(), r.Pattern, peer)
		handler.ServeHTTP(w, r)
	})
	traced := otelhttp.NewHandler(inner, "", otelhttp.WithTracerProvider(n.traces),
		otelhttp.WithMeterProvider(noop.NewMeterProvider()), otelhttp.WithPropagators(propagation.TraceContext{}),
		otelhttp.WithFilter(func(r *http.Request) bool {
			return strings.HasPrefix(r.URL.Path, "/v1/") || r.URL.Path == "/json"
		}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Pattern = route(r) // otelhttp makes the span's name and http.route from it
		traced.ServeHTTP(w, r)
	})
}

// traceGRPC makes a span for each call of the rate limit service.
func (n *node) traceGRPC() []grpc.ServerOption {
	if n.tracer == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithTracerProvider(n.traces),
		otelgrpc.WithMeterProvider(noop.NewMeterProvider()), otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(func(call *stats.RPCTagInfo) bool {
			return call.FullMethodName == rlsv3.RateLimitService_ShouldRateLimit_FullMethodName
		})))}
}
