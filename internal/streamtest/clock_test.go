package streamtest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
)

func TestAServersClockSteps(t *testing.T) {
	server, clock := streamtest.OwnRedisWithClock(t)
	if clock == nil {
		t.Skip("no C compiler or no redis-server")
	}
	c := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = c.Close() })
	ahead := func(want time.Duration) {
		t.Helper()
		streamtest.Eventually(t, 20*time.Second, fmt.Sprintf("the clock is %s beside ours", want),
			func() (bool, string) {
				now, err := c.Time(t.Context()).Result()
				if err != nil {
					return false, err.Error()
				}
				off := time.Until(now)
				return off > want-3*time.Second && off < want+3*time.Second, off.String()
			})
	}
	ahead(0)
	clock.Step(40 * time.Second)
	ahead(40 * time.Second)
	clock.Step(-80 * time.Second)
	ahead(-40 * time.Second)
	server.Kill()
	server.Start()
	ahead(-40 * time.Second)
	clock.Set(0)
	ahead(0)
}
