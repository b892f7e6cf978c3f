package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

// Rules that are not under overrides have none, and none can be set.
func TestRulesWithoutOverrides(t *testing.T) {
	ctx := t.Context()
	p := newService(t, streamtest.AnyRedis(t), Config{}, rule("a:*", windows.Window{Limit: 5, Per: time.Minute}))
	_, set := p.SetOverride(ctx, api.Override{Key: "a:1", Block: true}, 0)
	_, cleared := p.ClearOverride(ctx, "a:1", "", "x", "")
	_, _, read := p.Override(ctx, "a:1", "")
	_, changes := p.History(ctx, HistoryRequest{Key: "a:1", N: 5, Changes: true})
	for what, err := range map[string]error{"set": set, "cleared": cleared, "read": read, "changes": changes} {
		if !errors.Is(err, api.ErrBadRequest) {
			t.Errorf("%s: error %v, want %v", what, err, api.ErrBadRequest)
		}
	}
	if list := p.Overrides(1, "", ""); len(list) > 0 {
		t.Errorf("overrides %v", list)
	}
}

// A reset and a look at a key wait for Redis longer than a check does, because a person asked for them.
func TestAPersonWaitsLongerThanACheck(t *testing.T) {
	c := streamtest.Connect(t, streamtest.Redis(t))
	s := newService(t, c, Config{Timeout: time.Second}, rule("*", windows.Window{Limit: 1, Per: time.Hour}))
	var shortest time.Duration // that was left to answer a command
	c.AddHook(streamtest.OnCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if until, ok := ctx.Deadline(); ok {
			shortest = min(shortest, time.Until(until))
		}
		return next(ctx, cmd)
	}))
	for name, ask := range map[string]func() error{
		"reset": func() error { _, err := s.Reset(t.Context(), "k"); return err },
		"look":  func() error { _, err := s.Peek(t.Context(), "k"); return err },
	} {
		shortest = time.Hour
		if err := ask(); err != nil || shortest < 3*time.Second {
			t.Errorf("%s: %v to answer; %v", name, shortest, err)
		}
	}
}

// Callers do not see messages of Redis. They see what is wrong with their request.
func TestErrorText(t *testing.T) {
	redis := errors.New("NOPERM this user has no permissions to access key sc:{3}:log:x at 10.0.0.7:6379")
	for _, err := range []error{fmt.Errorf("%w: %w", api.ErrUnavailable, redis),
		fmt.Errorf("%w: %w", api.ErrOutcomeUnknown, redis), redis,
		fmt.Errorf("%w: %w", redis, context.DeadlineExceeded)} {
		if text := ErrorText(err); text == "" || strings.Contains(text, "NOPERM") ||
			strings.Contains(text, "10.0.0.7") {
			t.Errorf("%v: %q", err, text)
		}
	}
	full := fmt.Errorf("%w: %w", api.ErrUnavailable, streamtest.Refusal("OOM command not allowed at 10.0.0.7"))
	if text := ErrorText(full); text != "Redis refuses it: OOM" {
		t.Errorf("%v: %q", full, text)
	}
	refused := streamtest.Refusal("NOPERM User serve has no permissions to run the 'scan' command")
	if text, want := ErrorText(fmt.Errorf("%w: %w", api.ErrUnavailable, refused)),
		"Redis refuses the command scan to the user serve"; text != want {
		t.Errorf("%q, want %q", text, want)
	}
	if err := fmt.Errorf("%w: it is empty", api.ErrBadKey); ErrorText(err) != err.Error() {
		t.Errorf("%v: %q", err, ErrorText(err))
	}
}

func TestHistoryIsMergedNewestFirst(t *testing.T) {
	at := func(ms int64, place string) positioned { return positioned{place, api.HistoryEntry{AtMs: ms}} }
	sources := []source{{entries: []positioned{at(9, "a"), at(5, "b"), at(1, "c")}},
		{entries: []positioned{at(7, "d")}, reached: "x"}, {entries: []positioned{at(5, "e"), at(4, "f")}}}
	got, more := mergeHistory(sources, 4)
	if len(got) != 4 || got[0].AtMs != 9 || got[1].AtMs != 7 || got[3].AtMs != 5 || !more {
		t.Errorf("%+v, %v", got, more)
	}
	if sources[0].reached != "b" || sources[1].reached != "d" || sources[2].reached != "e" {
		t.Errorf("%+v", sources)
	}
	if got, more = mergeHistory(sources, 2); len(got) != 2 || more {
		t.Errorf("%+v, %v", got, more)
	}
	if got, more = mergeHistory(sources, 2); len(got) != 0 || more {
		t.Errorf("%+v, %v", got, more)
	}
}

func TestHistoryPlaces(t *testing.T) {
	for text, want := range map[string][3]string{"": {}, ",,": {},
		"12-34,56-api,78-0": {"12-34", "56-api", "78-0"}, ",56-a-b,": {"", "56-a-b", ""}} {
		if got, err := parseHistoryPositions(text); err != nil || got != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, bad := range []string{",", "a,,", "1-2,3-4,5", "1-2,3-*,5-6", "1-2,,+", "18446744073709551616-1,,",
		",,18446744073709551616-0", ",,1-18446744073709551616", ",,0-0", ",,00-0"} {
		if _, err := parseHistoryPositions(bad); !errors.Is(err, api.ErrBadRequest) || !strings.Contains(err.Error(),
			fmt.Sprintf("before=%q", bad)) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if !olderDecision("9-b", "10-a") || !olderDecision("9-a", "9-b") || olderDecision("9-b", "9-b") {
		t.Error("decisions are ordered by time, then by rule")
	}
}

// transitions fail with an error.
type transitions struct{ error }

func (t transitions) Alerts(context.Context, string, string, int) ([]api.Transition, []string, error) {
	return nil, nil, t.error
}

func (t transitions) Decisions(context.Context, string) ([]api.Transition, error) { return nil, nil }

// A place that the source of transitions does not know is the caller's mistake. It is not the caller's mistake if
// NATS is away.
func TestHistoryTellsMistakesFromOutages(t *testing.T) {
	ask := func(err error) (api.History, error) {
		s := &Service{config: Config{Transitions: transitions{err}}}
		return s.History(t.Context(), HistoryRequest{Key: "user:1", N: 10, Before: "7-8,,"})
	}
	if _, err := ask(fmt.Errorf("%w: place 7-8", api.ErrBadRequest)); !errors.Is(err, api.ErrBadRequest) ||
		!strings.Contains(err.Error(), `before="7-8,,"`) {
		t.Errorf("a place that is not known: %v", err)
	}
	if h, err := ask(errors.New("no responders")); err != nil || len(h.LeftOut) != 2 || h.LeftOut[1] != natsAway {
		t.Errorf("NATS is away: %+v, %v", h, err)
	}
}
