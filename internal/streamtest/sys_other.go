//go:build !linux

package streamtest

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

func dieWithParent() *syscall.SysProcAttr { return nil }

// Signals to freeze a process are not in the syscall package everywhere.
// Suspend freezes a process until Resume.
func Suspend(p *os.Process) error { return exec.Command("kill", "-STOP", strconv.Itoa(p.Pid)).Run() }

// Resume lets a frozen process go on.
func Resume(p *os.Process) error { return exec.Command("kill", "-CONT", strconv.Itoa(p.Pid)).Run() }
