//go:build unix

package guard

import (
	"syscall"
	"time"
)

// cpu is the processor time that this process has taken: unlike the clock's, it
// says what a machine that others use too would have needed alone.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
