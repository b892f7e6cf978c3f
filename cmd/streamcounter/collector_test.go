package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	otlp "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/streamcounter/streamcounter/internal/streamtest"
)

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
