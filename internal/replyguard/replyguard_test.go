package replyguard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/replyguard"
)

// fed is a connection that returns text in pieces of size bytes.
type fed struct {
	net.Conn
	text *bytes.Reader
	size int
}

func (f fed) Read(p []byte) (int, error) { return f.text.Read(p[:min(len(p), f.size)]) }
func (f fed) Close() error               { return nil }

var harmless = []string{
	"+OK\r\n", "-ERR no\r\n", ":-12\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n", "_\r\n", "#t\r\n", ",1.5\r\n",
	"$20\r\n*1000000000\r\n1234567\r\n", // inside a string
	"*2\r\n$3\r\na\r\n\r\n*1\r\n:5\r\n", "%1\r\n+a\r\n*2\r\n:1\r\n:2\r\n", "|1\r\n+a\r\n:1\r\n*1\r\n:1\r\n",
	">2\r\n+m\r\n+n\r\n",
	strings.Repeat("*1\r\n", 32) + ":1\r\n" + strings.Repeat("*2\r\n:1\r\n", 32) + "*0\r\n",
	strings.Repeat("*2\r\n*1\r\n:1\r\n|1\r\n+a\r\n+b\r\n*1\r\n$-1\r\n", 100), // the same depth again and again
	"*262144\r\n" + strings.Repeat(":1\r\n", 262144),
	strings.Repeat("*100000\r\n"+strings.Repeat("$1\r\na\r\n", 100000), 4), // each of them separately
}

var hostile = []string{
	"*1000000000\r\n", "*99999999999999999999999\r\n", "~1000000000\r\n", ">1000000000\r\n", "%1000000000\r\n",
	"|1000000000\r\n",
	"$1000000000\r\n", "=1000000000\r\n", "!1000000000\r\n",
	strings.Repeat("*100000\r\n", 3), // one inside the other
	strings.Repeat("*1\r\n", 33), strings.Repeat("|1\r\n+a\r\n%1\r\n+a\r\n", 40),
	"+" + strings.Repeat("a", 2<<20),
}

// Replies that Redis sends pass. Replies that it never sends are refused.
func TestReplies(t *testing.T) {
	for _, size := range []int{1, 3, 4096} {
		for i, text := range slices.Concat(harmless, hostile) {
			got, err := io.ReadAll(replyguard.New(fed{text: bytes.NewReader([]byte(text)), size: size}))
			passes := i < len(harmless)
			if passes && (err != nil || string(got) != text) || !passes && !errors.Is(err, replyguard.ErrTooLarge) {
				t.Errorf("%.40q in pieces of %d: %d of %d bytes, %v", text, size, len(got), len(text), err)
			}
		}
	}
}

// Without the guard, go-redis allocates what such a reply announces.
func TestAllocationFollowsWhatArrives(t *testing.T) {
	for _, text := range []string{"*1000000000\r\n", strings.Repeat("*100000\r\n", 50), "%100000000\r\n"} {
		c := redis.NewClient(&redis.Options{MaxRetries: -1, Protocol: 2, DisableIdentity: true,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				go func() { _, _ = io.WriteString(far, text) }()
				go func() { _, _ = io.Copy(io.Discard, far) }()
				return replyguard.New(near), nil
			}})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := c.Do(t.Context(), "LRANGE", "x", 0, -1).Err()
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; err == nil || took > 8<<20 {
			t.Errorf("%.20q: %d bytes were allocated, error %v", text, took, err)
		}
		_ = c.Close()
	}
}

func TestThePoolStillSeesAClosedConnection(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if _, ok := replyguard.New(a).(syscall.Conn); ok {
		t.Error("a connection without a file descriptor claims to have one")
	}
	if _, ok := replyguard.New(&net.TCPConn{}).(syscall.Conn); !ok {
		t.Error("a TCP connection hides its file descriptor")
	}
}

func FuzzPieces(f *testing.F) {
	for _, s := range append(harmless[:10], hostile[:9]...) {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		if size < 1 || size > 1<<16 {
			return
		}
		whole, errWhole := io.ReadAll(replyguard.New(fed{text: bytes.NewReader(text), size: 1 << 20}))
		pieces, errPieces := io.ReadAll(replyguard.New(fed{text: bytes.NewReader(text), size: size}))
		if fmt.Sprint(errWhole) != fmt.Sprint(errPieces) || errWhole == nil && !bytes.Equal(whole, pieces) {
			t.Fatalf("whole: %v, in pieces of %d: %v", errWhole, size, errPieces)
		}
	})
}
