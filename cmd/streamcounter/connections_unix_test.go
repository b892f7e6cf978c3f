//go:build unix

package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
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
	addr, before := strings.TrimPrefix(p.base(), "http://"), resident(t, p)
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
	grown := resident(t, p) - before
	t.Logf("%d idle connections took %d KiB, %d bytes each", callers, grown>>10, grown/callers)
	if most := 64 << 10 * callers; grown > most {
		t.Errorf("%d idle connections took %d MiB, want %d MiB at most", callers, grown>>20, most>>20)
	}
}

// resident is the memory of a process, in bytes.
func resident(t *testing.T, p *process) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.Cmd.Process.Pid))
	if err != nil {
		t.Skip("only Linux tells: ", err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	testkit.Must(t, err)
	return pages * os.Getpagesize()
}
