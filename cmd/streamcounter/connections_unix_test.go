//go:build unix

package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
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
	own := streamtest.OwnRedis(t)
	p := startServe(t, "--redis", own.URL(), "--max-connections", "15000", "--check-timeout", "20s")
	base := p.base()
	addr := strings.TrimPrefix(base, "http://")
	before := resident(t, p)

	idle := make([]net.Conn, callers)
	var dialers sync.WaitGroup
	const each = callers / 10
	for d := range callers / each {
		dialers.Go(func() {
			for i := d * each; i < (d+1)*each; i++ {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				idle[i] = c
				if i%2 == 0 {
					_, _ = c.Write([]byte("POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"))
				}
			}
		})
	}
	dialers.Wait()
	defer func() {
		for _, c := range idle {
			if c != nil {
				_ = c.Close()
			}
		}
	}()
	for i := range 20 {
		if code, body := request(t, "GET", base+fmt.Sprintf("/v1/check?key=user:%d", i), ""); code != 200 ||
			!strings.Contains(body, `"source":"redis"`) {
			t.Fatalf("check %d beside %d idle connections: %d %s", i, callers, code, body)
		}
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
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		t.Skip("only Linux tells: ", err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	testkit.Must(t, err)
	return pages * os.Getpagesize()
}
