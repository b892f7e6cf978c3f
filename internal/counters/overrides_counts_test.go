package counters_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// The end of an override with a duration is computed from Redis's clock at the moment when it is
// set, even if that clock stepped just before.
func TestAnOverrideLastsByRedissClock(t *testing.T) {
	server, clock := streamtest.OwnRedisWithClock(t)
	if clock == nil {
		t.Skip("no Redis with a clock of its own")
	}
	ctx, c := context.Background(), streamtest.Connect(t, server.Addr())
	keys, err := stream.NewKeys("sc", 4)
	testkit.Must(t, err)
	rules, err := windows.NewRules([]*windows.Rule{{Name: "api", Match: "user:*",
		Windows: []windows.Window{{Limit: 10, Per: time.Minute}}}})
	testkit.Must(t, err)
	all := counters.New(c, keys).NewOverrides(nil)
	testkit.Must(t, all.Poll(ctx))
	testkit.Must(t, all.Poll(ctx)) // it knows the clock as it was
	var late func()                // once, before the next script runs
	c.AddHook(streamtest.OnCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if late != nil && streamtest.IsScript(cmd) {
			late()
			late = nil
		}
		return next(ctx, cmd)
	}))
	for i, step := range []time.Duration{-time.Hour, time.Hour, -2 * time.Hour, 2 * time.Hour} {
		if i < 2 {
			clock.Set(step)
		} else { // after the clock was read, and before it is set
			late = func() { clock.Set(step) }
		}
		set, err := all.Set(ctx, rules.ValidateOverride, api.Override{Key: "user:1", Block: true}, time.Minute)
		testkit.Must(t, err)
		now, err := c.Time(ctx).Result()
		testkit.Must(t, err)
		if left := time.UnixMilli(set.UntilMs).Sub(now); left > time.Minute+time.Second || left < 0 {
			t.Errorf("stepped by %v: it ends in %v by Redis's clock, want a minute", step, left)
		}
	}
}

// If Redis takes longer to answer than an override lasts, the override's end is computed again, and it is set.
func TestAShortOverrideIsSetByASlowRedis(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
		asked := 0
		s.serve.Now = func() int64 { // by Set, and then by the script
			if asked++; asked == 2 {
				s.clock.ms += 900
			}
			return s.clock.ms
		}
		set, err := s.serve.NewOverrides(nil).Set(t.Context(), s.rules.ValidateOverride,
			api.Override{Key: "k", Block: true}, 500*time.Millisecond)
		if left := set.UntilMs - s.clock.ms; err != nil || left != 500 {
			t.Errorf("it ends in %d ms, %v", left, err)
		}
	})
}

// load sets the rules of a file, as a reload does.
func (s *store) load(yaml string) {
	s.t.Helper()
	s.rules = parsed(s.t, "rules:\n"+yaml)
	testkit.Must(s.t, s.learn())
}
