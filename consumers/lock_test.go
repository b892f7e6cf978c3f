package consumers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// newLocks returns the locks of a relay on an embedded Redis.
func newLocks(t *testing.T, partitions int, ttl time.Duration) (*locks, *miniredis.Miniredis) {
	t.Helper()
	server := streamtest.EmbeddedRedis(t)
	pool := poolOn(t, streamtest.Connect(t, server.Addr()), partitions, func(c *Config) { c.LockTTL = ttl })
	return pool.all.locks, server
}

// A relay that cannot renew its locks stops by its own clock, before another can take them.
func TestALockEndsLocally(t *testing.T) {
	l, server := newLocks(t, 2, 2*time.Second) // a busy machine may need a second for a call
	// At the first call the server compiles the script, which takes long under the race detector.
	_, err := l.request(t.Context(), nil, 1)
	testkit.Must(t, err)
	l.renew(t.Context())
	held := l.held()
	if len(held) != 2 {
		t.Fatalf("%d locks are held, expected 2", len(held))
	}
	server.SetError("gone")
	l.renew(t.Context())
	for p, lock := range held {
		waiting, cancel := context.WithTimeout(t.Context(), time.Minute)
		select {
		case <-lock.Done():
		case <-waiting.Done():
			t.Fatalf("the lock of partition %d does not end", p)
		}
		cancel()
	}
	if n := len(l.held()); n != 0 {
		t.Errorf("%d locks are held", n)
	}
}

// A process was frozen past the end of a lock, and goes on before its timers fire: the lock has ended. A lock that it
// takes after that is a new one, because another process may have had the lock in between. The same holds on a
// machine that was suspended, whose monotonic clock did not move.
func TestALockIsNotHeldOverItsEnd(t *testing.T) {
	for name, end := range map[string]*deadline{
		"slept":     {time.Now(), time.Now().Add(time.Hour).UnixMilli()},
		"suspended": {time.Now().Add(time.Hour), time.Now().UnixMilli()},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := newLocks(t, 1, time.Hour)
			l.renew(t.Context())
			first := l.held()[0]
			l.renew(t.Context())
			if l.held()[0] != first || first.Err() != nil {
				t.Fatal("a lock that is renewed in time is another")
			}
			l.holds[0].until.Store(end)
			if first.Err() == nil || len(l.held()) != 0 {
				t.Error("the lock is still held after its end")
			}
			l.renew(t.Context())
			if second := l.held()[0]; second == nil || second == first {
				t.Error("the lock goes on over its end")
			}
			select {
			case <-first.Done():
			default:
				t.Error("what worked under the first lock goes on")
			}
			l.release()
		})
	}
}

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
		locks.record(t.Context(), 0, true, time.Now().Add(locks.LockTTL))
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, stop)
		began := time.Now()
		pool.Run(ctx)
		if d := time.Since(began) - time.Minute; d != time.Hour {
			t.Errorf("it stopped after %s", d)
		}
	})
}
