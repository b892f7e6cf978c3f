package httpapi_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

// A refusal by Redis is in the answer and in the log, with the command that the process's user may not run. Many such
// requests write a few lines. (TestErrorText of package check has other refusals.)
func TestRefusalsOfRedisAreLogged(t *testing.T) {
	const refusal, want = "NOPERM User serve has no permissions to run the 'scan' command",
		"refuses the command scan to the user serve"
	c := streamtest.Connect(t, streamtest.Redis(t))
	c.AddHook(streamtest.OnCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "scan" {
			cmd.SetErr(streamtest.Refusal(refusal))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}))
	w := newWorld(t, c, rule("api", nil, windows.Window{Limit: 1, Per: patience}))
	var text bytes.Buffer
	ctx := httpapi.WithLog(t.Context(), slog.New(slog.NewTextHandler(&text, nil)))
	for range 15 {
		r := httptest.NewRequestWithContext(ctx, "PUT", "/v1/overrides/user:*?dry_run=true",
			strings.NewReader(`{"block":true}`))
		answer := httptest.NewRecorder()
		w.handler.ServeHTTP(answer, r)
		if got := answer.Body.String(); answer.Code != 503 || !strings.Contains(got, want) {
			t.Errorf("answer: %d %s", answer.Code, got)
		}
	}
	got := text.String()
	lines := strings.Count(got, "level=ERROR")
	if lines < 10 || lines > 14 || !strings.Contains(got, refusal[:20]) {
		t.Errorf("%d lines of 15, want 10, or a few more if this took minutes:\n%s", lines, got)
	}
}
