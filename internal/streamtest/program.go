package streamtest

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
)

// Program returns the path of a program that a test runs (nginx, php), from PATH or from where Debian installs
// servers. Without it the test is skipped, or fails if EnvRequire is set.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if path != "" {
			break
		}
		path, _ = exec.LookPath(dir + name)
	}
	if path == "" {
		missing(t, name, "install "+name, err)
	}
	return path
}

// ServeHTTP runs a program until the test ends, in a separate directory. ADDR in its arguments is its address. It is
// ready when it answers the path with 200.
func ServeHTTP(t testing.TB, program, path string, args ...string) *Server {
	t.Helper()
	s := newServer(t, program, "http")
	for _, arg := range args {
		s.args = append(s.args, strings.ReplaceAll(arg, "ADDR", s.Addr()))
	}
	s.ready = func(s *Server) error {
		return await(s.Addr(), s.gone, func(net.Conn) error {
			resp, err := http.Get(s.URL() + path)
			if err == nil && resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("%w: %s", errLoading, resp.Status)
			}
			if resp != nil {
				resp.Body.Close()
			}
			return err
		})
	}
	s.Start()
	return s
}
