// Package testkit is what tests of several packages share and that needs no
// server. It imports the standard library alone; only tests import it.
package testkit

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// Failer is what Must needs of a test, a benchmark, or a *rapid.T.
type Failer interface {
	Helper()
	Fatal(args ...any)
}

// Must ends the test where err is not nil.
func Must(t Failer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// WriteFile writes text into a file of that name in a directory of its own, which
// ends with the test, and gives its path. Only the owner may read it.
func WriteFile(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// FreePort gives a TCP port that nobody listened on at 127.0.0.1 a moment ago.
// Another process can take it before the caller does: use port 0 where the
// server tells which port it got.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	Must(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// FreeAddr is FreePort as 127.0.0.1:port.
func FreeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	Must(t, err)
	defer l.Close()
	return l.Addr().String()
}
