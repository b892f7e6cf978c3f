// Package testkit has what the tests of several packages share and what needs no server. It imports only the standard
// library; only tests import it.
package testkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Failer is the part of a test, a benchmark, or a *rapid.T that Must needs.
type Failer interface {
	Helper()
	Fatal(args ...any)
}

// Must ends the test if err is not nil.
func Must(t Failer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Late returns a context whose deadline has passed before its timer fired. Connections know only the deadline.
func Late(ctx context.Context) context.Context { return late{ctx, time.Now()} }

type late struct {
	context.Context
	deadline time.Time
}

func (l late) Deadline() (time.Time, bool) { return l.deadline, true }

// WriteFile writes text into a file of that name in a separate directory, which is removed at the end of the test,
// and returns its path. Only the owner may read the file.
func WriteFile(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// Rows returns the rows of a file: a text, and what comes of it, both as Go strings.
func Rows(t testing.TB, path string) map[string]string {
	t.Helper()
	file, err := os.ReadFile(path)
	Must(t, err)
	rows := map[string]string{}
	for line := range strings.Lines(string(file)) {
		var text, want string
		_, err := fmt.Sscanf(line, "%q %q", &text, &want)
		Must(t, err)
		rows[text] = want
	}
	if len(rows) == 0 {
		t.Fatal("no row in ", path)
	}
	return rows
}

// TakePort returns a TCP port on which nobody listened at 127.0.0.1 a moment ago, each port only once. It is below
// the ports that systems use for outgoing connections. Another process can take it before the caller does: if the
// server reports which port it got, use port 0.
func TakePort() (int, error) {
	for range 1000 {
		port := 20000 + rand.IntN(12000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		_ = l.Close()
		if _, known := given.LoadOrStore(port, true); !known {
			return port, nil
		}
	}
	return 0, errors.New("no free port from 20000 to 32000")
}

// FreePort is TakePort for a test.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := TakePort()
	Must(t, err)
	return port
}

// given has the ports that TakePort returned: even if a port is still free, it must not be returned twice.
var given sync.Map

// FreeAddr is FreePort as 127.0.0.1:port.
func FreeAddr(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", FreePort(t))
}

// Run calls a function beside the test. At the end of the test, or with stop, it ends the context of the function and
// waits until the function returns.
func Run(t testing.TB, do func(ctx context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { do(ctx) })
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	return stop
}

// Answering returns a server that has one answer.
func Answering(t testing.TB, status int, body string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return s
}

// Log is a text that some goroutines write while a test reads it.
type Log struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
