package streamtest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

// process is a server on a loopback port, with its log in dir. Its methods are called one at a time.
type process struct {
	bin, dir string
	port     int
	args     []string
	env      []string // in addition to the test's own
	// ready returns when the server answers; nil: the server is ready when it listens.
	ready func(p *process) error

	cmd    *exec.Cmd
	gone   chan struct{} // closed when the process has ended
	paused bool
}

func (p *process) addr() string { return fmt.Sprintf("127.0.0.1:%d", p.port) }

func (p *process) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.gone:
		return false
	default:
		return true
	}
}

// start returns when the server answers: the first time, or again on the same port and data.
func (p *process) start() error {
	if p.running() {
		return errors.New("it is running already")
	}
	out, err := os.OpenFile(p.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	p.cmd = exec.Command(p.bin, p.args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = p.dir, out, out, dieWithParent()
	p.cmd.Env = append(os.Environ(), p.env...)
	p.gone, p.paused = make(chan struct{}), false
	if err := launch(p.cmd, p.gone); err != nil {
		p.cmd = nil
		return err
	}
	if p.ready == nil {
		err = await(p.addr(), p.gone, func(net.Conn) error { return nil })
	} else {
		err = p.ready(p)
	}
	if err != nil {
		return fmt.Errorf("%w; its log ends: %s", err, p.logEnd())
	}
	return nil
}

// launch starts cmd and closes gone when it has ended. The kernel ends the child when the thread that started it
// ends. So the thread is locked, and lives as long as the child.
func launch(cmd *exec.Cmd, gone chan<- struct{}) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(gone)
		}
	}()
	return <-started
}

func (p *process) stop() error { return p.end(syscall.SIGTERM) }
func (p *process) kill() error { return p.end(syscall.SIGKILL) }

func (p *process) end(sig syscall.Signal) error {
	if !p.running() {
		return errors.New("it is not running")
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		return err
	}
	if p.paused { // a frozen process would keep SIGTERM for later
		if err := p.resume(); err != nil {
			return err
		}
	}
	<-p.gone
	return nil
}

func (p *process) pause() error {
	if !p.running() || p.paused {
		return errors.New("it is not running")
	}
	p.paused = true
	return Suspend(p.cmd.Process)
}

func (p *process) resume() error {
	if !p.paused {
		return errors.New("it is not paused")
	}
	p.paused = false
	return Resume(p.cmd.Process)
}

// remove ends the process, whatever its state.
func (p *process) remove() {
	if p.running() {
		_ = p.kill()
	}
}

func (p *process) log() string { return filepath.Join(p.dir, "log") }

func (p *process) logEnd() string {
	b, err := os.ReadFile(p.log())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-1000):])
}

// ServerProcess is a server program of one test, to simulate faults. Its methods may be called from any goroutine; a
// failure is an error of the test.
type ServerProcess struct {
	t    testing.TB
	name string
	mu   sync.Mutex
	p    *process
}

// newServerProcess makes a ServerProcess that ends with the test. If the test fails, it logs what the server said.
func newServerProcess(t testing.TB, name string, p *process) *ServerProcess {
	s := &ServerProcess{t: t, name: name, p: p}
	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		p.remove()
		if t.Failed() {
			t.Logf("%s %v: …%s", name, p.args, p.logEnd())
		}
	})
	return s
}

// Addr is the server's host:port, the same over restarts.
func (s *ServerProcess) Addr() string { return s.p.addr() }

// Stop ends the server as SIGTERM does and returns when it has ended.
func (s *ServerProcess) Stop() { s.t.Helper(); s.do("stop", s.p.stop) }

// Kill ends the server by SIGKILL and returns when it has ended.
func (s *ServerProcess) Kill() { s.t.Helper(); s.do("kill", s.p.kill) }

// Pause freezes the server: connections stay open, and it does not answer.
func (s *ServerProcess) Pause() { s.t.Helper(); s.do("pause", s.p.pause) }

// Resume lets a frozen server go on.
func (s *ServerProcess) Resume() { s.t.Helper(); s.do("resume", s.p.resume) }

// Start starts a stopped or killed server again on the same port and data
// directory and returns when it answers.
func (s *ServerProcess) Start() { s.t.Helper(); s.do("start", s.p.start) }

func (s *ServerProcess) do(what string, f func() error) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := f(); err != nil {
		s.t.Errorf("%s %s at %s: %v", what, s.name, s.p.addr(), err)
	}
}
