package consumers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// hangs is a hook of go-redis: no command gets an answer.
type hangs struct{}

func (hangs) DialHook(next redis.DialHook) redis.DialHook { return next }

func (hangs) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, _ redis.Cmder) error { <-ctx.Done(); return ctx.Err() }
}

func (hangs) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, _ []redis.Cmder) error { <-ctx.Done(); return ctx.Err() }
}

// If Redis hangs, a stop takes DrainTimeout. The time for the answer about the locks is part of it.
func TestAStopWhileRedisHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // a name would be looked up
		defer hung.Close()
		hung.AddHook(hangs{})
		pool := poolOn(t, hung, 1, func(c *Config) { c.DrainTimeout, c.LockTTL = time.Hour, 24*time.Hour })
		locks := pool.all.locks
		locks.note(t.Context(), 0, true, time.Now().Add(locks.LockTTL))
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, stop)
		began := time.Now()
		pool.Run(ctx)
		if d := time.Since(began) - time.Minute; d != time.Hour {
			t.Errorf("it stopped after %s", d)
		}
	})
}
