package main

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	otlp "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/internal/tracing"
)

const callersSpan = "00f067aa0ba902b7"

func traceparent(trace string) string { return "00-" + trace + "-" + callersSpan + "-01" }

// callService sends one value to the rate limit service at an address, in a trace.
func callService(t *testing.T, at, trace, value string) {
	t.Helper()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", traceparent(trace))
	testkit.Must(t, askLimit(ctx, connect(t, at, nil), "user", "user", value))
}

// traced is a dev with a collector of its spans.
type traced struct {
	*devServer
	collector *collector
	grpc      string // HOST:PORT
}

// ask sends a request in a trace, and reads the whole answer.
func (x *traced) ask(t *testing.T, trace, method, path, body string) {
	t.Helper()
	call(t, http.DefaultClient, method, x.url()+path, body,
		"traceparent: "+traceparent(trace), "tracestate: vendor=1,other=2", "X-Forwarded-For: 198.51.100.7")
}

// chain expects spans of a trace, each below the one before, the first below the caller's span. It returns the last
// one.
func (x *traced) chain(t *testing.T, trace string, names ...string) (last string) {
	t.Helper()
	last = callersSpan
	for _, name := range names {
		span := x.collector.Span(trace, name)
		if got := hex.EncodeToString(span.ParentSpanId); got != last {
			t.Errorf("the parent of %q is %s, want %s", name, got, last)
		}
		last = hex.EncodeToString(span.SpanId)
	}
	return last
}

func TestTraces(t *testing.T) {
	x := &traced{collector: newCollector(t), grpc: testkit.FreeAddr(t)}
	x.devServer = startDev(t, "--grpc", x.grpc, "--rules",
		testkit.WriteFile(t, "rules.yml", "rules: [{name: all, match: \"*\", windows: [{limit: 5, per: 1h}]}]"),
		"--extractors", testkit.WriteFile(t, "extractors.yml",
			"extractors: [{name: by-address, from: client-address, trusted_proxies: [127.0.0.1/32]}]"))
	t.Run("of checks", x.ofChecks)
	t.Run("of events", x.ofEvents)
	t.Run("follow the conventions", x.followTheConventions)
}

// A check over HTTP and one over gRPC continue the trace of their caller: a span of the server, and below it a span
// of the script call in Redis.
func (x *traced) ofChecks(t *testing.T) {
	const overHTTP, overGRPC = "0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736"
	x.ask(t, overHTTP, "POST", "/v1/check", `{"key": "user:1"}`)
	callService(t, x.grpc, overGRPC, "2")
	x.chain(t, overHTTP, "POST /v1/check", "FCALL check")
	x.chain(t, overGRPC, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", "FCALL check")

	// The histogram names a trace.
	_, metrics := call(t, http.DefaultClient, "GET", x.url()+"/metrics", "",
		"Accept: application/openmetrics-text")
	// If both checks are in one bucket, it has the later trace.
	exemplar := func(trace string) bool { return strings.Contains(metrics, `# {trace_id="`+trace+`"}`) }
	if !exemplar(overHTTP) && !exemplar(overGRPC) {
		t.Errorf("no exemplar with trace %s or %s in the metrics", overHTTP, overGRPC)
	}
}

// An event's trace continues to the decision that the event caused: from HTTP, or from the field traceparent of XADD,
// through the fold to the published message, in which subscribers receive it.
func (x *traced) ofEvents(t *testing.T) {
	nc := streamtest.ConnectNATS(t, x.nats)
	decisions, err := nc.SubscribeSync("sc.throttle.>")
	testkit.Must(t, err)
	testkit.Must(t, nc.Flush())

	// One event after the other, so that they are not folded together.
	published := func(key string) string {
		t.Helper()
		m, err := decisions.NextMsg(time.Minute)
		testkit.Must(t, err)
		var got api.Transition
		testkit.Must(t, json.Unmarshal(m.Data, &got))
		if got.Key != key {
			t.Fatalf("%s was throttled, want %s", got.Key, key)
		}
		return strings.Join(append(m.Header["traceparent"], m.Header["tracestate"]...), " ")
	}
	const overHTTP, byXADD = "1af7651916cd43dd8448eb211c80319c", "5bf92f3577b34da6a3ce929d0e0e4736"
	x.ask(t, overHTTP, "POST", "/v1/events", `{"key": "event:1", "count": 5}`)
	heard := map[string]string{overHTTP: published("event:1")} // trace → what came with the decision

	rdb := streamtest.Connect(t, x.redis)
	events := func(key string) string { return "sc:{" + partitionOf(t, key) + "}:events" }
	add := func(key, traceparent string) {
		testkit.Must(t, rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: events(key), Values: []any{"key", key, "count",
			"5", "traceparent", traceparent, "tracestate", "vendor=1,other=2"}}).Err())
	}
	add("event:2", traceparent(byXADD))
	heard[byXADD] = published("event:2")
	add("event:3", "00-"+byXADD+"-zz-01") // an event with a wrong trace context is not left out
	if got := published("event:3"); got != "" {
		t.Errorf("a decision without a trace came with %q", got)
	}

	for trace, names := range map[string][]string{
		overHTTP: {"POST /v1/events", "XADD sc:{partition}:events", "process " + events("event:1"), "FCALL fold",
			"publish sc.throttle.all.{key}"},
		byXADD: {"process " + events("event:2"), "FCALL fold", "publish sc.throttle.all.{key}"}} {
		if want := "00-" + trace + "-" + x.chain(t, trace, names...) + "-01 vendor=1,other=2"; heard[trace] != want {
			t.Errorf("the decision came with %q, want %q", heard[trace], want)
		}
	}
}

// Wrong variables for traces end the start.
func TestBadTraceVariables(t *testing.T) {
	for name, value := range map[string]string{"OTEL_TRACES_EXPORTER": "zipkin",
		"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			t.Setenv(name, value)
			expect(t, "dev --redis embedded:0 --nats embedded:0", failure, name, value)
		})
	}
}

// Spans have the names and attributes of OpenTelemetry's semantic conventions, of the version that their schema URL
// names. No span contains a counted key, whatever the request and its outcome.
func (x *traced) followTheConventions(t *testing.T) {
	const key = "recognisable@example.com"
	rdb := streamtest.Connect(t, x.redis)
	const broken = key + "/broken"
	testkit.Must(t, rdb.Set(t.Context(), "sc:{"+partitionOf(t, broken)+"}:log:"+broken, "not a log", 0).Err())
	text, err := os.ReadFile("testdata/spans") // requests, and below each a span of its trace with attributes
	testkit.Must(t, err)
	named := strings.NewReplacer("KEY", key, "PARTITION", partitionOf(t, key)).Replace(string(text))
	for i, block := range strings.Split(named, "\n\n") {
		request, rest, _ := strings.Cut(block, "\n")
		name, attributes, _ := strings.Cut(rest, "\n")
		method, target, _ := strings.Cut(request, " ")
		path, body, _ := strings.Cut(target, " ")
		trace := fmt.Sprintf("%032x", i+1) // each in a separate trace
		x.ask(t, trace, method, path, body)
		have := attributesOf(x.collector.Span(trace, name))
		for want := range strings.FieldsSeq(attributes) {
			attribute, value, _ := strings.Cut(want, "=")
			if have[attribute] != value { // empty: the attribute is missing
				t.Errorf("%s: the span %q has %s=%q, want %q", request, name, attribute, have[attribute], value)
			}
		}
	}

	const overGRPC = "6bf92f3577b34da6a3ce929d0e0e4736"
	callService(t, x.grpc, overGRPC, key)
	x.collector.Span(overGRPC, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")

	known := conventions(t)
	spans := x.collector.Spans()
	if len(spans) < 20 {
		t.Errorf("%d spans", len(spans))
	}
	for _, span := range spans {
		for name := range attributesOf(span) {
			if !known[name] && !strings.HasPrefix(name, "streamcounter.") &&
				!strings.HasPrefix(name, "http.request.header.") {
				t.Errorf("%s has the attribute %s, which %s does not know", span.Name, name, tracing.SchemaURL)
			}
		}
		for form, text := range map[string]string{"as it is": key, "in base64": base64.RawURLEncoding.EncodeToString(
			[]byte(key)), "in a URL": url.QueryEscape(key)} {
			if strings.Contains(prototext.Format(span), text) {
				t.Errorf("%s holds the key %s: %v", span.Name, form, span)
			}
		}
	}
}

// conventions are the attributes of the semantic conventions of tracing.SchemaURL, as OpenTelemetry's own module
// lists them.
func conventions(t *testing.T) map[string]bool {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "go.opentelemetry.io/otel").Output()
	testkit.Must(t, err)
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "semconv", "v"+path.Base(tracing.SchemaURL),
		"attribute_group.go"))
	testkit.Must(t, err)
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`attribute\.Key\("([^"]+)"\)`).FindAllSubmatch(text, -1) {
		known[string(m[1])] = true
	}
	return known
}

func attributesOf(span *tracepb.Span) map[string]string {
	out := map[string]string{}
	for _, a := range span.Attributes {
		value := a.Value.GetStringValue()
		if n, ok := a.Value.Value.(*commonpb.AnyValue_IntValue); ok {
			value = fmt.Sprint(n.IntValue)
		}
		out[a.Key] = value
	}
	return out
}

// collector receives traces over OTLP, as protobuf over HTTP.
type collector struct {
	*httptest.Server
	t   testing.TB
	mu  sync.Mutex
	got []*tracepb.Span
}

// newCollector runs a collector until the test ends. It sets the environment so that programs that the test starts
// send their traces to it.
func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{t: t}
	c.Server = httptest.NewServer(http.HandlerFunc(c.receive))
	t.Cleanup(c.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
	return c
}

func (c *collector) receive(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var request otlp.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &request)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, "no traces", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range request.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			c.got = append(c.got, scope.Spans...)
		}
	}
}

// Spans returns all spans that have come.
func (c *collector) Spans() []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.got)
}

// Span waits for a span of a trace: the trace by its id in hex, the span by its name.
func (c *collector) Span(trace, name string) (found *tracepb.Span) {
	c.t.Helper()
	streamtest.Eventually(c.t, name+" of trace "+trace, func() (bool, string) {
		var names []string
		for _, s := range c.Spans() {
			id := hex.EncodeToString(s.TraceId)
			if id == trace && s.Name == name {
				found = s
			}
			names = append(names, id+" "+s.Name)
		}
		return found != nil, fmt.Sprintf("these came: %q", names)
	})
	return found
}
