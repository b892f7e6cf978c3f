package streamtest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

// servers are the servers that a test requests, by name. The tests that use them show that they work.
var servers = map[string]func(t testing.TB){
	"redis": func(t testing.TB) { Redis(t) }, "nats": func(t testing.TB) { NATS(t) },
	"own redis": func(t testing.TB) { OwnRedis(t) }, "cluster": func(t testing.TB) { Cluster(t) },
}

// TestServer requests a server in a separate process: child says which one.
func TestServer(t *testing.T) {
	if ask := servers[os.Getenv("SERVER")]; ask != nil {
		ask(t)
	}
}

// child runs TestServer with another environment, and returns its output and whether it passed.
func child(t *testing.T, server string, env ...string) (out string, passed bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServer$", "-test.v")
	cmd.Env = append(append(os.Environ(), EnvRequire+"=", "SERVER="+server), env...)
	b, err := cmd.CombinedOutput()
	return string(b), err == nil
}

// A machine without Docker and without redis-server skips the test soon and says what was not tested. If servers are
// required, that is a failure.
func TestNoServer(t *testing.T) {
	none := []string{EnvDocker + "=0", "PATH="}
	began := time.Now()
	out, passed := child(t, "redis", none...)
	if want := "not tested on a real Redis (no Docker and no redis-server on PATH): start Docker, or install " +
		"redis-server"; !passed || !strings.Contains(out, "--- SKIP") || !strings.Contains(out, want) {
		t.Errorf("without servers it passed=%v, want a skip that says %q:\n%s", passed, want, out)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v to see that there is no server", took)
	}
	for server := range servers {
		if out, passed := child(t, server, append(none, EnvRequire+"=1")...); passed ||
			!strings.Contains(out, "is required (STREAMCOUNTER_TEST_REQUIRE=1)") {
			t.Errorf("with servers required %s passed=%v, want a failure that says so:\n%s", server, passed, out)
		}
	}
	// NATS is in the module, so its tests run without Docker.
	if out, passed := child(t, "nats", EnvDocker+"=0"); !passed || !strings.Contains(out, "--- PASS: TestServer") {
		t.Errorf("without Docker it passed=%v, want the embedded NATS:\n%s", passed, out)
	}
}
