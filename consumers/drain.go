package consumers

import (
	"context"
	"time"

	"github.com/streamcounter/streamcounter/internal/pause"
)

// drainContext returns a context for work that has begun. It ends `grace` after ctx ends, so that a batch that was read
// is finished and not left for others to claim.
func drainContext(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
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

// longestWait is the longest wait of a part that failed before it tries again.
const longestWait = 2 * time.Second

// backoff doubles from 50 ms to longestWait.
type backoff struct{ next time.Duration }

func (b *backoff) wait(ctx context.Context) bool { return pause.For(ctx, b.grow(longestWait)) }

// grow returns the next wait, at most `most`.
func (b *backoff) grow(most time.Duration) time.Duration {
	b.next = min(max(2*b.next, 50*time.Millisecond), most)
	return b.next
}

func (b *backoff) reset() { b.next = 0 }
