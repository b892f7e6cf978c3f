package streamtest

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

//go:embed clock.c
var clockSource []byte

// ServerClock is the clock of one Redis, apart from this machine's.
type ServerClock struct {
	t    testing.TB
	file *os.File

	mu sync.Mutex
}

// OwnRedisWithClock is OwnRedis with a clock that the test can step. It needs
// redis-server on PATH and a C compiler, for what stands between the server and
// the system's clock (clock.c); without them the clock is nil, or where
// EnvRequire is set the test fails.
func OwnRedisWithClock(t testing.TB, args ...string) (*RedisProcess, *ServerClock) {
	t.Helper()
	dir := t.TempDir()
	p, c, err := redisWithClock(dir, args)
	if err != nil {
		if required() {
			t.Fatalf("a Redis with a clock of its own is required: %v", err)
		}
		t.Logf("Redis has the system's clock: %v", err)
		return OwnRedis(t, args...), nil
	}
	c.t = t
	t.Cleanup(func() { _ = c.file.Close() })
	return ownRedis(t, p), c
}

func redisWithClock(dir string, args []string) (backend, *ServerClock, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, nil, errors.New("no redis-server on PATH")
	}
	source, lib := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		return nil, nil, err
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", lib, source).CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("no C compiler makes %s: %w: %.300s", filepath.Base(lib), err, out)
	}
	file, err := os.Create(filepath.Join(dir, "offset"))
	if err != nil {
		return nil, nil, err
	}
	c := &ServerClock{file: file}
	if err := c.set(0); err != nil {
		return nil, nil, err
	}
	p := &process{bin: "redis-server", dir: dir, args: args,
		env: []string{"LD_PRELOAD=" + lib, "CLOCK_OFFSET=" + file.Name()}}
	if p.port, err = testkit.TakePort(); err == nil {
		err = p.start()
	}
	return p, c, err
}

// Set puts the clock d beside the system's, in whole seconds.
func (c *ServerClock) Set(d time.Duration) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.set(d); err != nil {
		c.t.Error(err)
	}
}

func (c *ServerClock) set(d time.Duration) error {
	_, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(int64(d/time.Second))), 0)
	return err
}
