package bench

import (
	"syscall"
	"time"
)

// sleepShort sleeps in the kernel: a timer of the Go runtime can be late by a
// millisecond, which is more than a call takes.
func sleepShort(d time.Duration) {
	t := syscall.NsecToTimespec(d.Nanoseconds())
	_ = syscall.Nanosleep(&t, nil) // cut short by a signal, the caller looks at the clock again
}
