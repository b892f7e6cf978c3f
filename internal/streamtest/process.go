package streamtest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// process is a redis-server of PATH on a loopback port, with its data and its
// log in dir. It implements backend.
type process struct {
	bin, dir string
	port     int
	args     []string
	env      []string // beside the test's own

	cmd    *exec.Cmd
	gone   chan struct{} // closed when the process has ended
	paused bool
}

// redisProcess starts a redis-server; the error is exec.ErrNotFound where
// PATH has none. A port is free when it is chosen, not surely when it is
// taken, so a lost race is tried again on another.
func redisProcess(dir string, args []string) (backend, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, err
	}
	p := &process{bin: bin, dir: dir, args: args}
	for range 3 {
		if p.port, err = testkit.TakePort(); err != nil {
			return nil, err
		}
		if err = p.start(); err == nil {
			return p, nil
		}
		p.remove()
	}
	return nil, err
}

// clusterProcess starts a redis-server with a directory of its own, where it
// keeps what it knows of its cluster over restarts.
func clusterProcess(dir string, args []string) (backend, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a directory for redis-server: %w", err)
	}
	return redisProcess(dir, args)
}

func (p *process) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

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

func (p *process) start() error {
	if p.running() {
		return errors.New("it is running already")
	}
	out, err := os.OpenFile(filepath.Join(p.dir, "redis.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open redis-server's log: %w", err)
	}
	defer out.Close()

	args := append([]string{"--port", strconv.Itoa(p.port), "--bind", "127.0.0.1", "--dir", p.dir}, redisSettings...)
	p.cmd = exec.Command(p.bin, append(args, p.args...)...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if p.env != nil {
		p.cmd.Env = append(os.Environ(), p.env...)
	}
	p.cmd.SysProcAttr = dieWithParent()
	p.gone, p.paused = make(chan struct{}), false
	if err := launch(p.cmd, p.gone); err != nil {
		p.cmd = nil
		return fmt.Errorf("start redis-server: %w", err)
	}
	if err := awaitRedis(p.addr(), p.cmd.Process.Pid, p.gone); err != nil {
		return fmt.Errorf("%w; its log ends: %s", err, tail(out.Name(), 500))
	}
	return nil
}

// launch starts cmd and closes gone when it has ended. The kernel ends the
// child with the thread that started it, hence the locked thread: it lives as
// long as the child does.
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

func (p *process) remove() {
	if p.running() {
		_ = p.kill()
	}
}

// tail answers the last n bytes of a file.
func tail(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-n):])
}
