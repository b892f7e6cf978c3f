package streamtest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Sentinel starts a Redis Sentinel on a free port of 127.0.0.1 with config, which is lines of a sentinel.conf, and
// returns when it listens. directive is "port", or "tls-port" if config has certificates. A Sentinel needs
// redis-server on PATH: without it the test is skipped, or fails if EnvRequire is set. The Sentinel ends with the
// test.
func Sentinel(t testing.TB, directive, config string) string {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		missing(t, "a Redis Sentinel", "install redis-server", err)
	}
	port := testkit.FreePort(t)
	own := fmt.Sprintf("bind 127.0.0.1\nport %d\n", port)
	if directive != "port" { // otherwise it also listens on its default port
		own = fmt.Sprintf("bind 127.0.0.1\nport 0\n%s %d\n", directive, port)
	}
	file := testkit.WriteFile(t, "sentinel.conf", own+config)
	s := &Server{t: t, scheme: "redis+sentinel", bin: bin, dir: filepath.Dir(file), port: port,
		args: []string{file, "--sentinel"}}
	t.Cleanup(s.remove)
	s.Start()
	return s.Addr()
}
