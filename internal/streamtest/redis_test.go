package streamtest

import (
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// connect answers a client that reports every fault at once.
func connect(t *testing.T, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	testkit.Must(t, err)
	opts.MaxRetries, opts.DialerRetries = -1, 1
	opts.ReadTimeout = 30 * time.Second // a busy disk takes its time for an fsync
	c := redis.NewClient(opts)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestRedis(t *testing.T) {
	url := Redis(t)
	c := connect(t, url)
	for name, want := range map[string]string{
		"stream-node-max-bytes": "512", "maxmemory-policy": "noeviction", "appendonly": "no", "save": "",
	} {
		if got := c.ConfigGet(t.Context(), name).Val(); got[name] != want {
			t.Errorf("the shared Redis has %s %q, want %q", name, got[name], want)
		}
	}
	if again := Redis(t); again != url {
		t.Errorf("a second call answers %s, want the same server %s", again, url)
	}
}

func TestEmbeddedRedis(t *testing.T) {
	c := connect(t, "redis://"+EmbeddedRedis(t).Addr())
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}

func TestOwnRedis(t *testing.T) {
	faults(t, OwnRedis(t, "--appendonly", "yes", "--appendfsync", "always"))
}

// The same as a container, which OwnRedis takes where PATH has no redis-server.
func TestOwnRedisInContainer(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err == nil {
		t.Setenv("PATH", "")
	}
	faults(t, OwnRedis(t, "--appendonly", "yes", "--appendfsync", "always"))
}

// faults puts a server through everything that a test may do to it.
func faults(t *testing.T, p *RedisProcess) {
	ctx, c, url := t.Context(), connect(t, p.URL()), p.URL()
	holds := func(when string, want int64) {
		t.Helper()
		if got, err := c.Incr(ctx, "n").Result(); err != nil || got != want {
			t.Fatalf("%s: INCR answered %d, %v; want %d", when, got, err, want)
		}
	}
	silent := func(when string) {
		t.Helper()
		if err := c.WithTimeout(300 * time.Millisecond).Ping(ctx).Err(); err == nil {
			t.Fatalf("%s: it still answers", when)
		}
	}

	holds("new", 1)
	p.Pause()
	silent("paused")
	p.Resume()
	holds("resumed", 2)
	p.Stop()
	silent("stopped")
	p.Start()
	holds("started after a stop", 3)
	p.Kill()
	silent("killed")
	p.Start()
	holds("started after a kill", 4)
	p.Pause()
	p.Stop()
	p.Start()
	holds("started after it was stopped while paused", 5)
	if p.URL() != url {
		t.Errorf("its URL was %s and is %s", url, p.URL())
	}
	p.Pause() // and the end of the test must still remove it
}
