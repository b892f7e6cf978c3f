package streamtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// dieWithParent makes the kernel end a server whose test process was killed.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// Suspend freezes a process until Resume. It returns when all threads have stopped: on a busy machine it takes some
// time until the signal has reached each of them.
func Suspend(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for range 5000 {
		if stopped(p.Pid) {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("process %d does not stop", p.Pid)
}

func stopped(pid int) bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(tasks) == 0 {
		return false
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task) // PID (NAME) STATE …
		_, state, found := strings.Cut(string(text), ") ")
		if err == nil && (!found || !strings.ContainsAny(state[:1], "TZX")) {
			return false
		}
	}
	return true
}

// Resume lets a frozen process go on.
func Resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
