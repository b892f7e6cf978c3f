package httpapi_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

// headerItem is one member of a list of structured fields: a quoted name and whole numbers.
type headerItem struct {
	name   string
	params map[string]int64
}

func parseItems(t interface{ Fatalf(string, ...any) }, h http.Header, name string) (items []headerItem) {
	list, err := httpsfv.UnmarshalList(h.Values(name))
	if err != nil {
		t.Fatalf("%s: %q is no list of structured fields: %v", name, h.Values(name), err)
	}
	for _, member := range list {
		it, ok := member.(httpsfv.Item)
		text, quoted := it.Value.(string)
		if !ok || !quoted {
			t.Fatalf("%s: %q has a member that is no quoted name", name, h.Values(name))
		}
		params := map[string]int64{}
		for _, p := range it.Params.Names() {
			v, _ := it.Params.Get(p)
			n, whole := v.(int64)
			if !whole || n < 0 {
				t.Fatalf("%s: %q: %s is no whole number", name, h.Values(name), p)
			}
			params[p] = n
		}
		items = append(items, headerItem{text, params})
	}
	return items
}

// The headers follow the draft, agree with the body, and never let a caller come back too early.
func TestHeadersAreStructuredAndNeverTooEarly(t *testing.T) {
	spans := []time.Duration{1500 * time.Millisecond, 10 * time.Second, time.Hour}
	w := newWorld(t, streamtest.AnyRedis(t), rule("user", nil,
		windows.Window{Limit: 5, Per: spans[0]}, windows.Window{Limit: 12, Per: spans[1]},
		windows.Window{Limit: 40, Per: spans[2]}))
	keys, denials := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		keys++
		key := fmt.Sprintf("user:%d", keys)
		for range rapid.IntRange(1, 15).Draw(rt, "checks") {
			w.advance(time.Duration(rapid.IntRange(0, 2500).Draw(rt, "pause")) * time.Millisecond)
			cost := rapid.Int64Range(1, 5).Draw(rt, "cost")
			a := w.get(t, key, fmt.Sprint("cost=", cost))
			policies, states := parseItems(rt, a.header, "RateLimit-Policy"), parseItems(rt, a.header, "RateLimit")
			list, _ := a.body["windows"].([]any)
			if len(policies) != 3 || len(states) != 3 || len(list) != 3 {
				rt.Fatalf("%v: want three windows in each", a.header)
			}
			retry, _ := strconv.ParseInt(a.header.Get("Retry-After"), 10, 64)
			if (a.status == 429) != (retry > 0) || retry*1000 < a.num("retry_after_ms") {
				rt.Fatalf("%d with Retry-After %q for %d ms", a.status, a.header.Get("Retry-After"),
					a.num("retry_after_ms"))
			}
			for i, p := range policies {
				s, body := states[i], list[i].(map[string]any)
				if p.name != s.name || p.params["q"] != int64(body["limit"].(float64)) ||
					s.params["r"] != int64(body["remaining"].(float64)) ||
					p.params["w"] != int64((spans[i]+999*time.Millisecond)/time.Second) || len(p.params) != 2 ||
					len(s.params) != 2 {
					rt.Fatalf("%v, %v beside %v", p, s, body)
				}
				// A window that stands in the way: no unit of it comes back after Retry-After.
				if a.status == 429 && s.params["r"] < cost && retry < s.params["t"] {
					rt.Fatalf("Retry-After %d, but %s has more after %d s only", retry, s.name, s.params["t"])
				}
			}
			if a.status == 429 {
				denials++
				w.advance(time.Duration(retry) * time.Second)
				if a := w.get(t, key, fmt.Sprint("cost=", cost)); a.status != 200 {
					rt.Fatalf("denied %d s later: %s", retry, a.text)
				}
			}
		}
	})
	if denials == 0 {
		t.Error("nothing was denied: the test proves nothing")
	}
}

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
