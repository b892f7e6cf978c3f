package httpapi

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// X-Request-Id identifies one request in problems, logs and traces. It is the id that the caller or a proxy sent. If
// a request without an id fails with an error, the id is made here. A denial is no error and
// gets none: no log would have its id, and making one would add a tenth to the cost of a denial.
const requestIDHeader = "X-Request-Id"

// maxRequestID bounds what a caller gives, in bytes.
const maxRequestID = 128

// echoRequestID puts the caller's id on the answer. A value that is not a valid id, or could spoil a log, is left
// out.
func echoRequestID(w http.ResponseWriter, r *http.Request) {
	if given := r.Header[requestIDHeader]; len(given) == 1 && isRequestID(given[0]) {
		setRequestID(w, r, given[0])
	}
}

func isRequestID(s string) bool {
	return s != "" && len(s) <= maxRequestID &&
		!strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' || c == '"' || c == '\\' })
}

func setRequestID(w http.ResponseWriter, r *http.Request, id string) {
	w.Header().Set(requestIDHeader, id)
	if span := trace.SpanFromContext(r.Context()); span.IsRecording() {
		span.SetAttributes(attribute.StringSlice("http.request.header.x-request-id", []string{id}))
	}
}

// withRequestID gives a problem the id of the answer, if that has one.
func withRequestID(w http.ResponseWriter, p api.Problem) api.Problem {
	p.RequestID = w.Header().Get(requestIDHeader)
	return p
}

type logKey struct{}

// serverLog is the log of a server, with a bound for problems that may come a thousand times a second.
type serverLog struct {
	*slog.Logger
	refusals *rate.Limiter // of what Redis refuses
}

// WithLog puts into a context the log for problems that the server caused. It is for http.Server's BaseContext, because
// the log is the same for all requests.
func WithLog(ctx context.Context, log *slog.Logger) context.Context {
	return context.WithValue(ctx, logKey{}, serverLog{log, rate.NewLimiter(rate.Every(time.Minute), 10)})
}

// withID gives a problem its request's id. If the request has none, withID makes one.
func withID(w http.ResponseWriter, r *http.Request, p api.Problem) api.Problem {
	if w.Header().Get(requestIDHeader) == "" {
		setRequestID(w, r, rand.Text())
	}
	return withRequestID(w, p)
}

// identify gives a problem its request's id, and logs the problem if the server caused it. A problem of an outage is
// logged at debug level, because there may be thousands a second (the outage itself is logged once). An unexpected
// problem is logged as an error, and so is what Redis refuses: ten at once, then one a minute.
func identify(w http.ResponseWriter, r *http.Request, p api.Problem, err error) api.Problem {
	p = withID(w, r, p)
	log, ok := r.Context().Value(logKey{}).(serverLog)
	refused := redisclient.Word(err) != ""
	if !ok || p.Status < http.StatusInternalServerError && !refused {
		return p
	}
	level := slog.LevelDebug
	if p.Status == http.StatusInternalServerError || refused && log.refusals.Allow() {
		level = slog.LevelError
	}
	if log.Enabled(r.Context(), level) {
		fields := []any{"request_id", p.RequestID, "method", r.Method, "path", api.Shorten(r.URL.Path),
			"status", p.Status, "error", err}
		if span := trace.SpanContextFromContext(r.Context()); span.IsSampled() {
			fields = append(fields, "trace_id", span.TraceID().String())
		}
		log.Log(r.Context(), level, "a request failed", fields...)
	}
	return p
}
