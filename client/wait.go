package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
)

// Releases reports when a throttled key is released. guard.Guard implements it.
type Releases interface {
	// Released returns a channel that receives when the key is released, and a function that stops the notifications.
	// The channel holds one release until it is read.
	Released(key string) (released <-chan struct{}, stop func())
}

const (
	// Processes that wait for one key must not all ask at the same time. So each of them waits longer by a random
	// time: after a wait, by up to a tenth of it and at most waitJitter; after a release, by up to wakeJitter.
	waitJitter, wakeJitter = 50 * time.Millisecond, 10 * time.Millisecond
	// cacheAge is how old an answer from the server's cache or ours can be: see denialAge.
	cacheAge = 50 * time.Millisecond
	// maxDoublings is how many times the pause after a replayed answer doubles; the first one is firstPause.
	maxDoublings = 3
)

// Wait blocks until the key is charged cost units (0 means 1), like Wait of a golang.org/x/time/rate.Limiter. A key
// that no rule matches has no limit, so there is no wait.
//
// It asks, waits for as long as the answer says (RetryAfterMs) or until Config.Releases reports a release, and asks
// again. If several callers of a process wait for one key, the first of them asks the server. The server admits them
// in the order in which they called.
//
// It waits no longer than ctx, nor than Config.MaxWait. It returns an error at once if an answer, to it or to a
// caller before it, says that the wait would be longer, or that no wait helps. That error wraps ErrOverLimit and is
// an OverLimitError, which has the answer. If MaxWait passes behind other callers, the error wraps ErrOverLimit
// alone. If the cost is above the limit, the error is api.ErrCostExceedsLimit. A rule that charges what it denies
// (on_deny: charge) charges such a cost too, so there the error is an OverLimitError. If nobody answers, Config.Policy
// decides: Allow ends the wait, and Deny is an error that wraps api.ErrUnavailable.
//
// A check that is on its way when MaxWait passes is not cut off, so Wait can take longer by Config.Timeout. A check
// that ctx cuts off may have been charged.
func (c *Client) Wait(ctx context.Context, key string, cost int64) error {
	if err := c.wait(ctx, api.CheckRequest{Key: key, Cost: cost}); err != nil {
		return fmt.Errorf("client: waiting for key %s: %w", api.Shorten(key), err)
	}
	return nil
}

func (c *Client) wait(ctx context.Context, req api.CheckRequest) error {
	w := newWaiter(ctx, req.Key, c.config.MaxWait)
	if err := c.waiting.enter(ctx, w); err != nil {
		return err
	}
	defer c.waiting.leave(w)
	var released <-chan struct{} // nil: releases are not reported
	if c.config.Releases != nil {
		var stop func()
		released, stop = c.config.Releases.Released(req.Key) // before the check: none is missed
		defer stop()
	}
	woken := false
	for n := 0; ; n++ {
		// All calls with one key of the context have the same answer, so each check gets its own key.
		a, err := c.Check(api.Nth(ctx, n), req)
		if err != nil || a.Allowed {
			return err
		}
		delay := time.Duration(a.RetryAfterMs) * time.Millisecond
		switch {
		case a.Replayed:
			delay = firstPause << min(n, maxDoublings) // its wait began when it was first answered
		case woken && a.Source.FromMemory():
			delay = min(delay, cacheAge) // it may be from before the release
		}
		if delay <= 0 {
			return &OverLimitError{a}
		}
		if err := c.waiting.postpone(w, delay, a); err != nil {
			return err
		}
		if woken, err = w.sleep(ctx, delay, released); err != nil {
			return err
		}
	}
}

// sleep waits until the delay has passed or the key is released, and then for a short random time. It reports whether
// the key was released.
func (w *waiter) sleep(ctx context.Context, delay time.Duration, released <-chan struct{}) (woken bool, err error) {
	jitter := min(delay/10, waitJitter)
	if !w.end.IsZero() {
		jitter = max(min(jitter, time.Until(w.end)-delay), 0)
	}
	timer := time.NewTimer(delay + rand.N(jitter+1))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-released:
		woken = pause.For(ctx, rand.N(wakeJitter))
	case <-ctx.Done():
	}
	return woken, ctx.Err()
}
