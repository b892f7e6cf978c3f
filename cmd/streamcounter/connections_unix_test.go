//go:build unix

package main

import (
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Ten thousand callers connect and send nothing, or half a request. Other callers still get their answers, and the
// memory is bounded.
func TestIdleConnectionsStopNothing(t *testing.T) {
	const callers = 10_000
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Max < callers+1000 {
		t.Skipf("a process may have %d files open: not tested with %d connections", files.Max, callers)
	}
	files.Cur = files.Max // the server is a separate process, in which Go raises the limit itself
	testkit.Must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files))
	p := startServe(t, "--max-connections", "15000", "--check-timeout", "20s")
	addr := strings.TrimPrefix(p.base(), "http://")
	before, err := testkit.Resident(p.Cmd.Process.Pid)
	if err != nil {
		t.Skip("only Linux tells: ", err)
	}
	for i := range callers {
		c, err := net.Dial("tcp", addr)
		testkit.Must(t, err)
		defer c.Close()
		if i%2 == 0 {
			_, err = c.Write([]byte("POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"))
			testkit.Must(t, err)
		}
	}
	if code, body := request(t, "GET", p.base()+"/v1/check?key=user:1", ""); code != 200 ||
		!strings.Contains(body, `"source":"redis"`) {
		t.Fatalf("a check beside %d idle connections: %d %s", callers, code, body)
	}
	after, err := testkit.Resident(p.Cmd.Process.Pid)
	testkit.Must(t, err)
	grown := after - before
	t.Logf("%d idle connections took %d KiB, %d bytes each", callers, grown>>10, grown/callers)
	if most := int64(64 << 10 * callers); grown > most {
		t.Errorf("%d idle connections took %d MiB, want %d MiB at most", callers, grown>>20, most>>20)
	}
}
