package pipeline

import "syscall"

// The kernel sends the signal when the thread that started the worker ends. Go ends no thread before the process.
func init() { endsWithParent = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
