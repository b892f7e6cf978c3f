package partners

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// program is a process that runs until its test ends.
type program struct {
	testkit.Log // what it says
	t           testing.TB
	name        string
	cmd         *exec.Cmd
	gone        chan struct{}
}

// start runs a program with variables in addition to the test's own. The kernel ends it when the thread that started
// it ends.
func start(t testing.TB, env []string, path string, args ...string) *program {
	t.Helper()
	p := &program{t: t, name: filepath.Base(path), gone: make(chan struct{})}
	p.cmd = exec.Command(path, args...)
	p.cmd.Dir = t.TempDir()
	ours := func(line string) bool { return strings.HasPrefix(line, "STREAMCOUNTER_") }
	p.cmd.Env = append(slices.DeleteFunc(os.Environ(), ours), env...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
			close(p.gone)
		}
	}()
	testkit.Must(t, <-started)
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("%s said:\n%s", p.name, p.String())
		}
	})
	return p
}

// stop ends the program as SIGTERM does, or by SIGKILL if that takes more than 10 seconds.
func (p *program) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.gone:
	case <-time.After(time.Minute):
		_ = p.cmd.Process.Kill()
		<-p.gone
	}
}

// until waits for a pattern in the output, and returns its groups.
func (p *program) until(pattern string) []string {
	p.t.Helper()
	var found []string
	compiled := regexp.MustCompile(pattern)
	p.eventually(fmt.Sprintf("%s says %s", p.name, pattern), func() (bool, string) {
		found = compiled.FindStringSubmatch(p.String())
		return found != nil, "its output is shown below"
	})
	return found
}

// eventually waits for a state that the program causes, but no longer than the program runs.
func (p *program) eventually(what string, check func() (bool, string)) {
	p.t.Helper()
	streamtest.Eventually(p.t, what, func() (bool, string) {
		ended := false
		select {
		case <-p.gone:
			ended = true
		default:
		}
		done, state := check()
		if ended && !done {
			p.t.Fatalf("%s: %s ended: %v; last state: %s", what, p.name, p.cmd.ProcessState, state)
		}
		return done, state
	})
}

// built returns the path of a program that `make partners` builds.
func built(t testing.TB, name string) string {
	t.Helper()
	for _, p := range Programs {
		if p.Name == name {
			if _, err := os.Stat(p.Path()); err != nil {
				t.Fatalf("%v: run make partners, which builds it", err)
			}
			return p.Path()
		}
	}
	t.Fatalf("%s is not in the table of programs", name)
	return ""
}

// ours is the program streamcounter, built once from this repository unless STREAMCOUNTER_TEST_PROGRAM is its path.
// Main of the tests does not remove it, because it is in bin.
var ours = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("STREAMCOUNTER_TEST_PROGRAM"); path != "" {
		return path, nil
	}
	path := filepath.Join(Dir(), "streamcounter")
	out, err := exec.Command("go", "build", "-C", "../..", "-o", path, "./cmd/streamcounter").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build streamcounter: %w\n%s", err, out)
	}
	return path, nil
})

func streamcounter(t testing.TB, env []string, args ...string) *program {
	t.Helper()
	path, err := ours()
	testkit.Must(t, err)
	return start(t, env, path, args...)
}

// at returns the address of streamcounter for a protocol, from its log.
func (p *program) at(protocol string) string {
	p.t.Helper()
	return p.until(`"msg":"ready".*"` + protocol + `":"([^"]+)"`)[1]
}

func absolute(t testing.TB, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	testkit.Must(t, err)
	return path
}

// programOf returns the path of a program from Debian.
func programOf(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: apt-get install %s", err, Debian[name])
	}
	return path
}
