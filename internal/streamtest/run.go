package streamtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Child is a program that runs beside a test, and what it says.
type Child struct {
	testkit.Log
	T    testing.TB
	Cmd  *exec.Cmd
	Gone chan struct{} // closed when it has ended
}

// Run starts a program, which ends with the test. If the test fails, what the program said is logged.
func Run(t testing.TB, cmd *exec.Cmd) *Child {
	t.Helper()
	p := &Child{T: t, Cmd: cmd, Gone: make(chan struct{})}
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = p, p, dieWithParent()
	testkit.Must(t, launch(cmd, p.Gone))
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.Gone
		if t.Failed() {
			t.Logf("%s %s:\n%s", filepath.Base(cmd.Path), strings.Join(cmd.Args[1:], " "), p.String())
		}
	})
	return p
}

// Eventually waits for a state that the program causes, but no longer than the program runs.
func (p *Child) Eventually(what string, check func() (done bool, state string)) {
	p.T.Helper()
	Eventually(p.T, what, func() (bool, string) {
		ended := false
		select {
		case <-p.Gone:
			ended = true
		default:
		}
		done, state := check()
		if ended && !done {
			p.T.Fatalf("%s: the program has ended: %v; last state: %s", what, p.Cmd.ProcessState, state)
		}
		return done, state
	})
}

// EndsOn sends a signal to the program, if it has not ended, waits for its end, and returns its exit code.
func (p *Child) EndsOn(signal os.Signal) int {
	p.T.Helper()
	_ = Resume(p.Cmd.Process) // a frozen process would keep the other signal for later
	_ = p.Cmd.Process.Signal(signal)
	select {
	case <-p.Gone:
	case <-time.After(time.Minute):
		p.T.Fatalf("it still runs a minute after %v:\n%s", signal, p.String())
	}
	return p.Cmd.ProcessState.ExitCode()
}
