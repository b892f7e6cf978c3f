package streamtest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Server is a server program on a loopback port, with its log in Dir, to simulate faults. Its methods may be called
// from any goroutine; a failure is an error of the test.
type Server struct {
	t        testing.TB // nil: the tests of a package share it, and only start and end it
	scheme   string     // of its URL
	bin, dir string
	port     int
	args     []string
	env      []string // in addition to the test's own
	// ready returns when the server answers; nil: the server is ready when it listens.
	ready func(s *Server) error

	// readyText is a text that the process logs when it is ready. A process that ends earlier is restarted.
	readyText string

	mu     sync.Mutex // of what follows
	ended  bool       // by the test
	cmd    *exec.Cmd
	gone   chan struct{} // closed when the process has ended
	paused bool
}

// newServer makes a server in a directory of its own, which has not started and ends with the test. If the test fails,
// it logs what the server said.
func newServer(t testing.TB, bin, scheme string) *Server {
	s := &Server{t: t, bin: bin, scheme: scheme, dir: t.TempDir(), port: testkit.FreePort(t)}
	t.Cleanup(func() {
		s.remove()
		if t.Failed() {
			t.Logf("%s %v: …%s", filepath.Base(bin), s.args, s.logEnd())
		}
	})
	return s
}

// Process makes a process of a program, which Start starts. If it ends before it logs the text ready, it is restarted,
// because it may need a server that does not answer yet. Its methods report no error if it has just ended.
func Process(t testing.TB, program, ready string, args ...string) *Server {
	s := newServer(t, program, "process")
	s.args, s.readyText, s.ready = args, ready, func(*Server) error { return nil }
	return s
}

// restart waits for the end of the process. It starts the process again if its log does not have readyText yet.
func (s *Server) restart(gone chan struct{}, before int) {
	<-gone
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone == gone && !s.ended && !strings.Contains(s.Log()[before:], s.readyText) {
		_ = s.start()
	}
}

// Addr is the server's host:port, the same over restarts.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// URL is the server's address as redis://host:port or nats://host:port.
func (s *Server) URL() string { return s.scheme + "://" + s.Addr() }

// Dir is the directory of the server's data.
func (s *Server) Dir() string { return s.dir }

// Start starts a stopped or killed server again on the same port and data
// directory and returns when it answers.
func (s *Server) Start() { s.t.Helper(); s.do("start", s.start) }

// Stop ends the server as SIGTERM does and returns when it has ended.
func (s *Server) Stop() { s.t.Helper(); s.do("stop", func() error { return s.end(syscall.SIGTERM) }) }

// Kill ends the server by SIGKILL and returns when it has ended.
func (s *Server) Kill() { s.t.Helper(); s.do("kill", func() error { return s.end(syscall.SIGKILL) }) }

// Pause freezes the server: connections stay open, and it does not answer.
func (s *Server) Pause() { s.t.Helper(); s.do("pause", s.pause) }

// Resume lets a frozen server go on.
func (s *Server) Resume() { s.t.Helper(); s.do("resume", s.resume) }

func (s *Server) do(what string, f func() error) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := f(); err != nil {
		s.t.Errorf("%s the server at %s: %v", what, s.URL(), err)
	}
}

// remove ends the server, whatever its state.
func (s *Server) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended = true; s.running() {
		_ = s.end(syscall.SIGKILL)
	}
}

// Running reports whether the process lives.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running()
}

// Pid is the number of the last process that was started.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cmd.Process.Pid
}

func (s *Server) running() bool {
	if s.cmd == nil {
		return false
	}
	select {
	case <-s.gone:
		return false
	default:
		return true
	}
}

// start returns when the server answers: the first time, or again on the same port and data.
func (s *Server) start() error {
	if s.running() {
		return errors.New("it is running already")
	}
	out, err := os.OpenFile(s.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	s.cmd = exec.Command(s.bin, s.args...)
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr, s.cmd.SysProcAttr = s.dir, out, out, dieWithParent()
	s.cmd.Env = append(os.Environ(), s.env...)
	s.gone, s.paused, s.ended = make(chan struct{}), false, false
	before := len(s.Log())
	if err := launch(s.cmd, s.gone); err != nil {
		s.cmd = nil
		return err
	}
	if s.readyText != "" {
		go s.restart(s.gone, before)
	}
	if s.ready == nil {
		err = await(s.Addr(), s.gone, func(net.Conn) error { return nil })
	} else {
		err = s.ready(s)
	}
	if err != nil {
		return fmt.Errorf("%w; its log ends: %s", err, s.logEnd())
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

func (s *Server) end(sig syscall.Signal) error {
	if s.ended = true; !s.running() {
		if s.readyText != "" {
			return nil
		}
		return errors.New("it is not running")
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		return err
	}
	if s.paused { // a frozen process would keep SIGTERM for later
		if err := s.resume(); err != nil {
			return err
		}
	}
	<-s.gone
	return nil
}

func (s *Server) pause() error {
	if s.readyText != "" && !s.running() {
		return nil
	}
	if !s.running() || s.paused {
		return errors.New("it is not running")
	}
	s.paused = true
	return Suspend(s.cmd.Process)
}

func (s *Server) resume() error {
	if s.readyText != "" && !(s.paused && s.running()) {
		return nil
	}
	if !s.paused {
		return errors.New("it is not paused")
	}
	s.paused = false
	return Resume(s.cmd.Process)
}

func (s *Server) log() string { return filepath.Join(s.dir, "log") }

// Log returns what the server has said.
func (s *Server) Log() string {
	b, err := os.ReadFile(s.log())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (s *Server) logEnd() string {
	text := s.Log()
	return text[max(0, len(text)-1000):]
}
