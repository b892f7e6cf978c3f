package pause

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// longestSleep bounds one sleep of Exact: ctx is looked at in between.
const longestSleep = 10 * time.Millisecond

// Exact is For, true to some 0.1 ms: for pauses of a few milliseconds at most. The timers
// of an otherwise idle Go process end at whole milliseconds of epoll, so For takes one
// millisecond or more for 0.3. Exact occupies a thread while it sleeps. It sees that ctx
// has ended 10 ms late at most.
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
