package tracing

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"

// A trace context is the same after Parse and Format. A tracestate that is not valid, or too long, is left out; the
// trace continues.
func TestContextOfATrace(t *testing.T) {
	for _, x := range []struct{ parent, state, wantParent, wantState string }{
		{parent, "", parent, ""},
		{parent, "a=1,b=2", parent, "a=1,b=2"},
		{parent, "no state", parent, ""},
		{parent, "a=" + strings.Repeat("x", 512), parent, ""},
		{strings.TrimSuffix(parent, "1") + "0", "a=1", "", ""}, // not sampled
		{"", "a=1", "", ""},
	} {
		if p, s := Format(Parse(x.parent, x.state)); p != x.wantParent || s != x.wantState {
			t.Errorf("%q, %q became %q, %q; want %q, %q", x.parent, x.state, p, s, x.wantParent, x.wantState)
		}
	}
}

type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

// An error is recorded by its type, never by its text.
func TestErrorsWithoutTheirText(t *testing.T) {
	for _, x := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("a: %w", refusal("WRONGTYPE of user:1")), "error.type=WRONGTYPE db.response.status_code=WRONGTYPE"},
		{fmt.Errorf("user:1: %w", context.DeadlineExceeded), "error.type=timeout"},
		{fmt.Errorf("user:1: %w", context.Canceled), "error.type=canceled"},
		{errors.New("user:1"), "error.type=*errors.errorString"},
	} {
		spans := tracetest.NewSpanRecorder()
		tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
		_, span := Start(t.Context(), tracer, "a", trace.SpanKindClient)
		span.End(x.err)
		ended := spans.Ended()[0]
		var have []string
		for _, a := range ended.Attributes() {
			have = append(have, string(a.Key)+"="+a.Value.AsString())
		}
		if got := strings.Join(have, " "); got != x.want || ended.Status() != (sdktrace.Status{Code: codes.Error}) {
			t.Errorf("%v: %s and %+v, want %s", x.err, got, ended.Status(), x.want)
		}
	}
}
