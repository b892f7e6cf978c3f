package pause

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// longestSleep bounds one sleep of Exact: ctx is checked in between.
const longestSleep = 10 * time.Millisecond

// Exact is For with an error of some 0.1 ms. The timers of an idle Go process end at whole
// milliseconds of epoll, so For waits one millisecond or more if d is 0.3 ms. Exact occupies
// a thread while it sleeps, so use it for a few milliseconds at most. It notices the end of
// ctx within 10 ms.
func Exact(ctx context.Context, d time.Duration) bool {
	for end := time.Now().Add(d); ctx.Err() == nil; {
		left := time.Until(end)
		if left <= 0 {
			return true
		}
		ts := unix.NsecToTimespec(int64(min(left, longestSleep)))
		// A signal ends it early (EINTR); the loop sleeps for the rest.
		_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil)
	}
	return false
}
