package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

const callersSpan = "00f067aa0ba902b7"

func traceparent(trace string) string { return "00-" + trace + "-" + callersSpan + "-01" }

// A check over HTTP and one over gRPC go on with the trace of their caller: a span of the server, and
// below it one of the script call in Redis.
func TestTracesOfChecks(t *testing.T) {
	collector := streamtest.NewCollector(t)
	port := testkit.FreePort(t)
	d := startDev(t, "--grpc", fmt.Sprintf("127.0.0.1:%d", port), "--rules",
		testkit.WriteFile(t, "rules.yml", "rules: [{name: all, match: \"*\", windows: [{limit: 100, per: 10s}]}]"))

	const overHTTP, overGRPC = "0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736"
	request, err := http.NewRequest(http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/v1/check", d.http),
		strings.NewReader(`{"key": "user:1"}`))
	testkit.Must(t, err)
	request.Header.Set("traceparent", traceparent(overHTTP))
	resp, err := http.DefaultClient.Do(request)
	testkit.Must(t, err)
	_ = resp.Body.Close()

	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	testkit.Must(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "traceparent",
		traceparent(overGRPC)), 20*time.Second)
	defer cancel()
	_, err = rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "user",
		Descriptors: []*commonv3.RateLimitDescriptor{{Entries: []*commonv3.RateLimitDescriptor_Entry{
			{Key: "user", Value: "2"}}}}})
	testkit.Must(t, err)

	for trace, server := range map[string]string{overHTTP: "POST /v1/check",
		overGRPC: "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"} {
		span := collector.Span(trace, server)
		if parent := hex.EncodeToString(span.ParentSpanId); parent != callersSpan {
			t.Errorf("%s: the parent is %q, want the caller's span %s", server, parent, callersSpan)
		}
		if redis := collector.Span(trace, "EVALSHA check"); !bytes.Equal(redis.ParentSpanId, span.SpanId) {
			t.Errorf("%s: the parent of the span of Redis is %x, want %x", server, redis.ParentSpanId, span.SpanId)
		}
	}

	// The histogram names a trace.
	request, err = http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", d.http), nil)
	testkit.Must(t, err)
	request.Header.Set("Accept", "application/openmetrics-text")
	resp, err = http.DefaultClient.Do(request)
	testkit.Must(t, err)
	defer resp.Body.Close()
	metrics, err := io.ReadAll(resp.Body)
	testkit.Must(t, err)
	// A bucket that both fell into has the later of the two.
	exemplar := func(trace string) bool { return strings.Contains(string(metrics), `# {trace_id="`+trace+`"}`) }
	if !exemplar(overHTTP) && !exemplar(overGRPC) {
		t.Errorf("no exemplar with trace %s or %s in the metrics", overHTTP, overGRPC)
	}
}

// What the environment asks for wrongly ends the start.
// An event's trace goes on to the decision that it caused: over HTTP, or with the field traceparent of XADD,
// through the fold to what is published, whose subscribers are handed it.
func TestTracesOfEvents(t *testing.T) {
	collector := streamtest.NewCollector(t)
	d := startDev(t, "--rules", testkit.WriteFile(t, "rules.yml",
		"rules: [{name: all, match: \"*\", windows: [{limit: 5, per: 1h}]}]"))
	nc, err := nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", d.nats))
	testkit.Must(t, err)
	defer nc.Close()
	decisions, err := nc.SubscribeSync("sc.throttle.>")
	testkit.Must(t, err)
	testkit.Must(t, nc.Flush())

	// One after the other, so that none is folded with another.
	published := func(key string) string {
		t.Helper()
		m, err := decisions.NextMsg(20 * time.Second)
		testkit.Must(t, err)
		var got api.Transition
		testkit.Must(t, json.Unmarshal(m.Data, &got))
		if got.Key != key {
			t.Fatalf("%s was throttled, want %s", got.Key, key)
		}
		return strings.Join(m.Header["traceparent"], " ")
	}
	const overHTTP, byXADD = "1af7651916cd43dd8448eb211c80319c", "5bf92f3577b34da6a3ce929d0e0e4736"
	request, err := http.NewRequest(http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/v1/events", d.http),
		strings.NewReader(`{"key": "user:1", "count": 5}`))
	testkit.Must(t, err)
	request.Header.Set("traceparent", traceparent(overHTTP))
	resp, err := http.DefaultClient.Do(request)
	testkit.Must(t, err)
	_ = resp.Body.Close()
	heard := map[string]string{overHTTP: published("user:1")} // trace → what came with the decision

	rdb := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", d.redis)})
	defer rdb.Close()
	add := func(key, traceparent string) {
		testkit.Must(t, rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: "sc:{" + partitionOf(t, key) + "}:events",
			Values: []any{"key", key, "count", "5", "traceparent", traceparent}}).Err())
	}
	add("user:2", traceparent(byXADD))
	heard[byXADD] = published("user:2")
	add("user:3", "00-"+byXADD+"-zz-01") // what is no trace context is no reason to leave an event out
	if got := published("user:3"); got != "" {
		t.Errorf("a decision without a trace came with %q", got)
	}

	for trace, chain := range map[string][]string{
		overHTTP: {"POST /v1/events", "XADD events", "count event", "EVALSHA fold", "publish throttled"},
		byXADD:   {"count event", "EVALSHA fold", "publish throttled"}} {
		parent := callersSpan
		for _, name := range chain {
			span := collector.Span(trace, name)
			if got := hex.EncodeToString(span.ParentSpanId); got != parent {
				t.Errorf("the parent of %q is %s, want %s", name, got, parent)
			}
			parent = hex.EncodeToString(span.SpanId)
		}
		if want := "00-" + trace + "-" + parent + "-01"; heard[trace] != want {
			t.Errorf("the decision came with %q, want %q", heard[trace], want)
		}
	}
}

func TestBadTraceVariables(t *testing.T) {
	for name, value := range map[string]string{"OTEL_TRACES_EXPORTER": "zipkin",
		"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			t.Setenv(name, value)
			code, _, stderr := runProgram(t, "", "dev", "--redis", "embedded:0", "--nats", "embedded:0")
			if code == 0 || !strings.Contains(stderr, name) || !strings.Contains(stderr, value) {
				t.Errorf("exit code %d, %q; want an error that names %s and %s", code, stderr, name, value)
			}
		})
	}
}
