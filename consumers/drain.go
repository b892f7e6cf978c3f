package consumers

import (
	"context"
	"time"
)

// lingering gives a context for work that has begun: it ends `grace` after ctx
// does, so that a batch in hand is finished and not left for others to claim.
func lingering(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(work, func() { timer.Stop() })
	})
	return work, func() {
		stop()
		cancel()
	}
}

// pause waits for d or until ctx ends, and reports whether it may go on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// backoff doubles from 50 ms to 2 s.
type backoff struct{ next time.Duration }

func (b *backoff) wait(ctx context.Context) bool {
	b.next = min(max(2*b.next, 50*time.Millisecond), 2*time.Second)
	return pause(ctx, b.next)
}

func (b *backoff) reset() { b.next = 0 }
