package check

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/windows"
)

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
