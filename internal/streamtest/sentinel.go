package streamtest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Sentinel starts a Redis Sentinel on a free port of 127.0.0.1 with config, lines
// of a sentinel.conf, and returns when it listens. directive is "port", or
// "tls-port" where config has its certificates. A Sentinel needs redis-server on
// PATH: without it the test is skipped, or fails where EnvRequire is set. It ends
// with the test.
func Sentinel(t testing.TB, directive, config string) (addr string) {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		missing(t, "a Redis Sentinel", "install redis-server", err)
	}
	port := testkit.FreePort(t)
	own := fmt.Sprintf("bind 127.0.0.1\nport %d\n", port)
	if directive != "port" { // else it takes its usual port as well
		own = fmt.Sprintf("bind 127.0.0.1\nport 0\n%s %d\n", directive, port)
	}
	file := testkit.WriteFile(t, "sentinel.conf", own+config)
	dir := filepath.Dir(file)
	out, err := os.Create(filepath.Join(dir, "sentinel.log"))
	testkit.Must(t, err)
	cmd, gone := exec.Command(bin, file, "--sentinel"), make(chan struct{})
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = dir, out, out, dieWithParent()
	testkit.Must(t, launch(cmd, gone))
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-gone
		_ = out.Close()
	})
	addr = fmt.Sprintf("127.0.0.1:%d", port)
	if err := await(addr, gone, func(net.Conn) error { return nil }); err != nil {
		t.Fatalf("Sentinel: %v; its log ends: %s", err, tail(out.Name(), 500))
	}
	return addr
}
