package streamtest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/streamcounter/streamcounter/internal/embedded"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

var sharedRedis shared

// redisSettings are the settings of our Redis servers (deploy/redis.conf explains them), except for persistence,
// which a test that needs it sets.
var redisSettings = []string{
	"--save", "", "--appendonly", "no",
	"--stream-node-max-bytes", "512", "--maxmemory-policy", "noeviction",
}

// Redis returns the URL of a real Redis that the tests of this package share: never flush it, and use keys under
// Prefix. It runs in a container (EnvRedisImage), or it is the redis-server on PATH. Without either of them the test
// is skipped. If EnvRequire is set, the test fails instead, and PATH is not used.
func Redis(t testing.TB) string {
	t.Helper()
	url, err := getSharedRedis(t)
	if err != nil {
		missing(t, "a real Redis", "start Docker, or install redis-server", err)
	}
	return url
}

// HasRedis reports whether Redis returns a URL. It ends the test if a real Redis is required and missing.
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
	addr, stop, err := runContainer(cmp.Or(os.Getenv(EnvRedisImage), DefaultRedisImage), 6379,
		func(addr string) error { return awaitRedis(addr, 0, nil) },
		testcontainers.WithCmd(append([]string{"redis-server", "--protected-mode", "no"}, redisSettings...)...),
		testcontainers.WithWaitStrategy(wait.ForLog("Ready to accept connections").WithPollInterval(pollEvery)),
	)
	if err == nil {
		return "redis://" + addr, "", stop, nil
	}
	if required() {
		return "", "", nil, err
	}
	dir, mkErr := os.MkdirTemp("", "streamtest-redis-")
	if mkErr != nil {
		return "", "", nil, fmt.Errorf("make a directory for redis-server: %w", mkErr)
	}
	s, startErr := startRedis(nil, dir, nil, nil)
	if startErr != nil {
		os.RemoveAll(dir)
		if errors.Is(startErr, exec.ErrNotFound) {
			startErr = fmt.Errorf("%w and no redis-server on PATH", err)
		}
		return "", "", nil, startErr
	}
	return s.URL(), fmt.Sprintf("Redis is redis-server from PATH: %v", err),
		func() { s.remove(); os.RemoveAll(dir) }, nil
}

// startRedis starts a redis-server from PATH with its data in dir; the error is exec.ErrNotFound if PATH has none.
// The port is free when it is chosen, but another process can take it before the server does. Then it tries again on
// another port.
func startRedis(t testing.TB, dir string, env, args []string) (*Server, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, err
	}
	for range 3 {
		s := &Server{t: t, scheme: "redis", bin: bin, dir: dir, env: env,
			ready: func(s *Server) error { return awaitRedis(s.Addr(), s.cmd.Process.Pid, s.gone) }}
		if s.port, err = testkit.TakePort(); err != nil {
			return nil, err
		}
		s.args = slices.Concat([]string{"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1"}, redisSettings, args)
		if err = s.start(); err == nil {
			return s, nil
		}
		s.remove()
	}
	return nil, err
}

// EmbeddedRedis starts an embedded Redis for this test alone. It differs from the real one in clocks, expiry,
// trimming and numbers, so it shows that parts fit together, never that counts are right.
func EmbeddedRedis(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	m := ScriptsRedis(t)
	testkit.Must(t, embedded.AddFunctions(m))
	return m
}

// ScriptsRedis is EmbeddedRedis without functions: the library runs as scripts.
func ScriptsRedis(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	return miniredis.RunT(t)
}

// OwnRedis starts a redis-server from PATH for this test alone, with args after its settings ("--appendonly", "yes"
// for data that survive a restart). Without the program the test is skipped, or fails if EnvRequire is set. The
// server ends with the test.
func OwnRedis(t testing.TB, args ...string) *Server {
	t.Helper()
	return ownRedis(t, nil, args)
}

func ownRedis(t testing.TB, env, args []string) *Server {
	t.Helper()
	s, err := startRedis(t, t.TempDir(), env, args)
	if errors.Is(err, exec.ErrNotFound) {
		missing(t, "a real Redis of its own", "install redis-server", errors.New("no redis-server on PATH"))
	}
	testkit.Must(t, err)
	t.Cleanup(s.remove)
	return s
}
