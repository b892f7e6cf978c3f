package streamtest

import (
	"os/exec"
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
