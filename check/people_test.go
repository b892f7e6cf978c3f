package check

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// A reset and a look at a key wait for Redis longer than a check does, as a person asked for them.
func TestAPersonWaitsLongerThanACheck(t *testing.T) {
	c := streamtest.Connect(t, streamtest.Redis(t))
	keys, err := stream.NewKeys(streamtest.Prefix(t), 16)
	testkit.Must(t, err)
	rules := rulesOf(t, rule("*", windows.Window{Limit: 1, Per: time.Hour}))
	s, err := NewService(Config{Counter: counters.New(c, keys), Rules: windows.Fixed(rules).Rules,
		Timeout: time.Second})
	testkit.Must(t, err)
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
