package streamtest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
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
