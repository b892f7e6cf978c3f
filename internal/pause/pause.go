// Package pause waits between attempts: until a time has passed or a context has ended. It imports only the standard
// library.
package pause

import (
	"context"
	"time"
)

// Gone returns why the caller of ctx waits no more, nil if it waits: ctx has ended, or its deadline has passed. A
// connection with the same deadline can fail before the timer of ctx fires.
func Gone(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// For waits for d or until ctx ends, and reports whether d has passed.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// BeforeDeadline is For, but does not wait if less than 2*d is left until ctx's deadline: a request that is sent
// after the wait could not be answered in time, so it would be unknown whether it was done.
func BeforeDeadline(ctx context.Context, d time.Duration) bool {
	if end, ok := ctx.Deadline(); ok && time.Until(end) < 2*d {
		return false
	}
	return For(ctx, d)
}

// Closed waits until a channel is closed, or has a value. It returns false if ctx or the deadline ends first.
func Closed[T any](ctx context.Context, over <-chan T, deadline time.Time) bool {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-over:
		return true
	case <-ctx.Done():
	case <-timer.C:
	}
	return false
}
