package httpapi_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

// Problems that the server caused are logged with the id.
func TestRequestIDsInTheLog(t *testing.T) {
	var text bytes.Buffer
	level := new(slog.LevelVar)
	log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: level}))
	router := httpapi.NewRouter(nil, httpapi.HealthRoutes(func(context.Context) error { return errors.New("away") })...)
	ask := func() string {
		r, answer := httptest.NewRequestWithContext(httpapi.WithLog(t.Context(), log), "GET", "/readyz", nil),
			httptest.NewRecorder()
		r.Header.Set("X-Request-Id", "a-1")
		router.ServeHTTP(answer, r)
		if body := answer.Body.String(); !strings.Contains(body, "not ready") || strings.Contains(body, "Redis") {
			t.Errorf("it need not be Redis that is away: %s", body)
		}
		return text.String()
	}
	if got := ask(); got != "" {
		t.Errorf("an outage is logged at debug alone: %s", got)
	}
	level.Set(slog.LevelDebug)
	if got := ask(); !strings.Contains(got, "request_id=a-1") || !strings.Contains(got, "status=503") {
		t.Errorf("logged: %q", got)
	}
}

// A right that the process's user of Redis lacks is in the answer and in the log, with the command.
func TestARightThatIsMissing(t *testing.T) {
	c := streamtest.Connect(t, streamtest.Redis(t))
	c.AddHook(streamtest.OnCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "scan" {
			cmd.SetErr(streamtest.Refusal("NOPERM User serve has no permissions to run the 'scan' command"))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}))
	w := newWorld(t, c, rule("api", nil, windows.Window{Limit: 1, Per: patience}))
	var text bytes.Buffer
	r := httptest.NewRequestWithContext(httpapi.WithLog(t.Context(), slog.New(slog.NewTextHandler(&text, nil))),
		"PUT", "/v1/overrides/user:*?dry_run=true", strings.NewReader(`{"block":true}`))
	answer := httptest.NewRecorder()
	w.handler.ServeHTTP(answer, r)
	if got := answer.Body.String(); answer.Code != 503 ||
		!strings.Contains(got, "Redis refuses the command scan to the user serve") {
		t.Errorf("answer: %d %s", answer.Code, got)
	}
	if got := text.String(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "'scan' command") {
		t.Errorf("logged: %s", got)
	}
}
