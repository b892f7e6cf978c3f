package streamtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
)

var sharedRedis shared

// redisSettings are what a Redis of ours runs with (deploy/redis.conf says
// why), but for persistence, which tests that need it ask for.
var redisSettings = []string{
	"--save", "", "--appendonly", "no",
	"--stream-node-max-bytes", "512", "--maxmemory-policy", "noeviction",
}

// Redis answers the URL of a real Redis that the tests of this package share:
// never flush it, take keys under Prefix. It comes from a container
// (EnvRedisImage), else from the redis-server on PATH; with neither the test
// is skipped, or fails where EnvRequire is set, which also rules out PATH.
func Redis(t testing.TB) string {
	t.Helper()
	url, err := getSharedRedis(t)
	if err != nil {
		missing(t, "a real Redis", remedyRedis, err)
	}
	return url
}

// HasRedis tells whether Redis answers a URL, or ends the test as a real Redis is required.
func HasRedis(t testing.TB) bool {
	t.Helper()
	_, err := getSharedRedis(t)
	return err == nil || required()
}

func getSharedRedis(t testing.TB) (string, error) {
	t.Helper()
	return sharedRedis.get(t, func() (string, string, func(), error) {
		url, note, stop, err := startSharedRedis()
		if err == nil {
			if err = setUsers(url, sharedUsers); err != nil {
				stop()
			}
		}
		return url, note, stop, err
	})
}

func startSharedRedis() (url, note string, stop func(), err error) {
	c, err := redisContainer(nil)
	if err == nil {
		return "redis://" + c.addr(), "", c.remove, nil
	}
	if required() {
		return "", "", nil, err
	}
	dir, mkErr := os.MkdirTemp("", "streamtest-redis-")
	if mkErr != nil {
		return "", "", nil, fmt.Errorf("make a directory for redis-server: %w", mkErr)
	}
	p, startErr := redisProcess(dir, nil)
	if startErr != nil {
		os.RemoveAll(dir)
		return "", "", nil, noRedis(err, startErr)
	}
	return "redis://" + p.addr(), fmt.Sprintf("Redis is redis-server from PATH: %v", err),
		func() { p.remove(); os.RemoveAll(dir) }, nil
}

// noRedis says in one line why neither a container nor a process serves.
func noRedis(container, process error) error {
	if !errors.Is(process, exec.ErrNotFound) {
		return process
	}
	if errors.Is(container, errNoDocker) {
		return errors.New("no Docker and no redis-server on PATH")
	}
	return fmt.Errorf("%w, and no redis-server on PATH", container)
}

// EmbeddedRedis answers an embedded Redis of the test's own. It differs from
// the real one in clocks, expiry, trimming and numbers, so it shows that parts
// fit together, never that counts are right.
func EmbeddedRedis(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	return miniredis.RunT(t)
}

// RedisProcess is a real Redis of one test's own, for faults. Its methods may
// be called from any goroutine; what fails is an error of the test.
type RedisProcess struct {
	t  testing.TB
	mu sync.Mutex
	b  backend
}

// backend runs one private server, as a process or as a container. Whoever
// holds it calls one method at a time.
type backend interface {
	addr() string
	start() error // returns when the server answers; same port and data as before
	stop() error
	kill() error
	pause() error
	resume() error
	remove() // stops it, whatever its state, and leaves nothing behind
}

// OwnRedis starts a real Redis for this test alone, with args after its
// settings ("--appendonly", "yes" for data that outlive a restart). It is a
// process if redis-server is on PATH, else a container; without either the
// test is skipped, or fails where EnvRequire is set. It ends with the test.
func OwnRedis(t testing.TB, args ...string) *RedisProcess {
	t.Helper()
	b, err := redisProcess(t.TempDir(), args)
	if err != nil {
		if !errors.Is(err, exec.ErrNotFound) {
			t.Fatal(err)
		}
		c, cErr := redisContainer(args)
		if cErr != nil {
			missing(t, "a real Redis", remedyRedis, noRedis(cErr, err))
		}
		b = c
	}
	return ownRedis(t, b)
}

func ownRedis(t testing.TB, b backend) *RedisProcess {
	p := &RedisProcess{t: t, b: b}
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		b.remove()
	})
	return p
}

// Addr is the server's host:port, the same over restarts.
func (p *RedisProcess) Addr() string { return p.b.addr() }

// URL is the server's address as redis://host:port.
func (p *RedisProcess) URL() string { return "redis://" + p.b.addr() }

// Stop ends the server as SIGTERM does and returns when it has gone.
func (p *RedisProcess) Stop() { p.t.Helper(); p.do("stop", p.b.stop) }

// Kill ends the server by SIGKILL and returns when it has gone.
func (p *RedisProcess) Kill() { p.t.Helper(); p.do("kill", p.b.kill) }

// Pause freezes the server: connections stay open and nothing is answered.
func (p *RedisProcess) Pause() { p.t.Helper(); p.do("pause", p.b.pause) }

// Resume lets a frozen server go on.
func (p *RedisProcess) Resume() { p.t.Helper(); p.do("resume", p.b.resume) }

// Start starts a stopped or killed server again on the same port and data
// directory and returns when it answers.
func (p *RedisProcess) Start() { p.t.Helper(); p.do("start", p.b.start) }

func (p *RedisProcess) do(what string, f func() error) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := f(); err != nil {
		p.t.Errorf("%s redis at %s: %v", what, p.b.addr(), err)
	}
}
