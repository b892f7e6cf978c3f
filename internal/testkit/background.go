package testkit

import (
	"context"
	"sync"
	"testing"
)

// Background runs something until stop, or until the end of the test. stop returns when it has ended, and may be called
// twice.
func Background(t testing.TB, run func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}
