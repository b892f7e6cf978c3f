package streamtest

import (
	"os"
	"syscall"
)

// dieWithParent has the kernel end a server whose test process was killed.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// Suspend freezes a process until Resume.
func Suspend(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

// Resume lets a frozen process go on.
func Resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
