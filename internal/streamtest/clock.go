package streamtest

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

//go:embed clock.c
var clockSource []byte

// ServerClock is the clock of one Redis, separate from this machine's clock.
type ServerClock struct {
	t    testing.TB
	file *os.File
}

// OwnRedisWithClock is OwnRedis with a clock that the test can step. It needs
// a C compiler to build clock.c, which answers the server's calls for the time. Without a compiler the clock is nil. If
// EnvRequire is set, the test fails instead.
func OwnRedisWithClock(t testing.TB, args ...string) (*Server, *ServerClock) {
	t.Helper()
	dir := t.TempDir()
	source, lib := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	testkit.Must(t, os.WriteFile(source, clockSource, 0o600))
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", lib, source).CombinedOutput(); err != nil {
		if required() {
			t.Fatalf("a Redis with a clock of its own is required: %v: %s", err, out)
		}
		t.Logf("Redis has the system's clock: %v: %.300s", err, out)
		return OwnRedis(t, args...), nil
	}
	file, err := os.Create(filepath.Join(dir, "offset"))
	testkit.Must(t, err)
	t.Cleanup(func() { _ = file.Close() })
	c := &ServerClock{t: t, file: file}
	c.Set(0)
	return ownRedis(t, []string{"LD_PRELOAD=" + lib, "CLOCK_OFFSET=" + file.Name()}, args), c
}

// Set sets the clock to d after the system's clock, in whole seconds.
func (c *ServerClock) Set(d time.Duration) {
	c.t.Helper()
	offset := binary.NativeEndian.AppendUint64(nil, uint64(int64(d/time.Second)))
	if _, err := c.file.WriteAt(offset, 0); err != nil {
		c.t.Error(err)
	}
}
