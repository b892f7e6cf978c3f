package streamtest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

// fakeTB is a test that fails or skips without ending the one it runs in.
type fakeTB struct {
	testing.TB
	said []string
}

func (f *fakeTB) Helper()      {}
func (f *fakeTB) Name() string { return "TestSomething" }

func (f *fakeTB) Fatal(args ...any)                 { f.end("fatal", "%s", args) }
func (f *fakeTB) Fatalf(format string, args ...any) { f.end("fatal", format, args) }
func (f *fakeTB) Skipf(format string, args ...any)  { f.end("skip", format, args) }

func (f *fakeTB) end(how, format string, args []any) {
	f.said = append(f.said, how+": "+fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// ending runs f as a test of its own and answers how it ended.
func ending(f func(t testing.TB)) string {
	tb := &fakeTB{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(tb)
	}()
	<-done
	return strings.Join(tb.said, "\n")
}

func TestEventually(t *testing.T) {
	calls := 0
	got := ending(func(t testing.TB) {
		Eventually(t, time.Minute, "the third call", func() (bool, string) {
			calls++
			return calls == 3, "not yet"
		})
	})
	if got != "" || calls != 3 {
		t.Errorf("after %d calls it said %q, want 3 calls and nothing said", calls, got)
	}

	calls = 0
	got = ending(func(t testing.TB) {
		Eventually(t, 20*time.Millisecond, "rain", func() (bool, string) {
			calls++
			return false, fmt.Sprintf("dry at call %d", calls)
		})
	})
	if want := fmt.Sprintf("fatal: rain: not within 20ms; last state: dry at call %d", calls); got != want ||
		calls < 2 {
		t.Errorf("it said %q, want %q after more than one call", got, want)
	}
}

func TestPrefixIsShortAndUnique(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		p := Prefix(t)
		if len(p) > 24 || p[0] != 't' || strings.Trim(p, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			t.Fatalf("prefix %q is not of [a-z0-9-], from t, at most 24 characters", p)
		}
		if seen[p] {
			t.Fatalf("prefix %q came twice", p)
		}
		seen[p] = true
	}
}

// child runs one test of this package in a process of its own, with more
// environment, and answers its output and whether it passed.
func child(t *testing.T, test string, env ...string) (out string, passed bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(append(os.Environ(), EnvRequire+"="), env...)
	b, err := cmd.CombinedOutput()
	return string(b), err == nil
}

// A machine without Docker and without redis-server skips soon and says what
// was not tested; where servers are required, that is a failure.
func TestNoServer(t *testing.T) {
	none := []string{EnvDocker + "=0", "PATH="}
	began := time.Now()
	out, passed := child(t, "TestRedis", none...)
	if want := "not tested on a real Redis (no Docker and no redis-server on PATH): start Docker, or install " +
		"redis-server"; !passed || !strings.Contains(out, "--- SKIP") || !strings.Contains(out, want) {
		t.Errorf("without servers it passed=%v, want a skip that says %q:\n%s", passed, want, out)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v to see that there is no server", took)
	}
	for _, test := range []string{"TestRedis", "TestNATS", "TestOwnRedis", "TestCluster"} {
		if out, passed := child(t, test, append(none, EnvRequire+"=1")...); passed ||
			!strings.Contains(out, "is required (STREAMCOUNTER_TEST_REQUIRE=1)") {
			t.Errorf("with servers required %s passed=%v, want a failure that says so:\n%s", test, passed, out)
		}
	}
}

// NATS is in the module, so its tests run without Docker.
func TestNATSWithoutDocker(t *testing.T) {
	out, passed := child(t, "TestNATS", EnvDocker+"=0")
	if !passed || !strings.Contains(out, "NATS is embedded, nats-server 2.") ||
		!strings.Contains(out, "--- PASS: TestNATS") {
		t.Errorf("without Docker it passed=%v, want the embedded server:\n%s", passed, out)
	}
}

// An image that cannot be had leaves the program on PATH, within seconds.
func TestImageMissing(t *testing.T) {
	if _, err := docker(); err != nil {
		t.Skipf("not tested that a missing image is passed over (%v): start Docker", err)
	}
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("not tested that a missing image is passed over: install redis-server")
	}
	began := time.Now()
	out, passed := child(t, "TestRedis", EnvRedisImage+"=nobody.invalid/redis:0")
	if !passed || !strings.Contains(out, "Redis is redis-server from PATH: no image nobody.invalid/redis:0") {
		t.Errorf("without the image it passed=%v, want the server from PATH:\n%s", passed, out)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %v to pass the image over", took)
	}
	if out, passed := child(t, "TestRedis", EnvRedisImage+"=nobody.invalid/redis:0", EnvRequire+"=1"); passed {
		t.Errorf("with servers required it passed without the image:\n%s", out)
	}
}

func TestSharedServersNeedMain(t *testing.T) {
	underMain.Store(false)
	defer underMain.Store(true)
	got := ending(func(t testing.TB) { Redis(t) })
	if !strings.Contains(got, "streamtest.Main(m)") {
		t.Errorf("without Main it said %q, want how to write TestMain", got)
	}
}
