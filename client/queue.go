package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/api"
)

// queues has the callers of this process that wait, by key.
type queues struct {
	mu   sync.Mutex
	keys map[string]*queue // key → its queue, which is never empty
}

// queue has the waiters in the order of arrival. The first one asks the server; the others wait for their turn.
type queue struct {
	waiters []*waiter
	until   time.Time       // the first is not admitted before, by its last answer; zero: it has no answer yet
	answer  api.CheckAnswer // that answer
}

type waiter struct {
	key     string
	maxWait time.Duration
	end     time.Time        // how long it can wait; zero: there is no end
	timeout <-chan time.Time // receives when MaxWait has passed; nil without MaxWait
	turn    chan error       // receives once: nil when it is the first, or the error that ends its wait
}

func newWaiter(ctx context.Context, key string, maxWait time.Duration) *waiter {
	w := &waiter{key: key, maxWait: maxWait, turn: make(chan error, 1)}
	w.end, _ = ctx.Deadline()
	if maxWait > 0 {
		w.timeout = time.After(maxWait)
		if end := time.Now().Add(maxWait); w.end.IsZero() || end.Before(w.end) {
			w.end = end
		}
	}
	return w
}

// enter blocks until it is w's turn. The caller must call leave if enter returned no error.
func (q *queues) enter(ctx context.Context, w *waiter) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	q.mu.Lock()
	line := q.keys[w.key]
	if line == nil {
		line = &queue{}
		q.keys[w.key] = line
		w.turn <- nil
	}
	err := line.tooLong(w)
	if err == nil {
		line.waiters = append(line.waiters, w)
	}
	q.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case err = <-w.turn:
	case <-ctx.Done():
		err = ctx.Err()
	case <-w.timeout:
		err = fmt.Errorf("%w: others are before it, and MaxWait %s has passed", ErrOverLimit, w.maxWait)
	}
	if err != nil {
		q.leave(w)
	}
	return err
}

// leave takes w out, and gives the turn to the next waiter if w was the first.
func (q *queues) leave(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.keys[w.key]
	at := -1
	if line != nil {
		at = slices.Index(line.waiters, w)
	}
	if at < 0 {
		return // postpone took it out
	}
	line.waiters = slices.Delete(line.waiters, at, at+1)
	switch {
	case len(line.waiters) == 0:
		delete(q.keys, w.key)
	case at == 0:
		line.until = time.Time{} // the next may have a lower cost
		line.waiters[0].turn <- nil
	}
}

// postpone records for how long the first waiter is denied. It returns an error if the first cannot wait that long,
// and ends the wait of each other waiter that cannot.
func (q *queues) postpone(first *waiter, delay time.Duration, a api.CheckAnswer) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.keys[first.key]
	line.until, line.answer = time.Now().Add(delay), a
	line.waiters = slices.DeleteFunc(line.waiters, func(w *waiter) bool {
		if w == first {
			return false
		}
		err := line.tooLong(w)
		if err != nil {
			w.turn <- err
		}
		return err != nil
	})
	return line.tooLong(first)
}

// tooLong returns an error if the first waiter is admitted only after w has to give up.
func (l *queue) tooLong(w *waiter) error {
	if w.end.IsZero() || !l.until.After(w.end) {
		return nil
	}
	a := l.answer
	a.RetryAfterMs = (time.Until(l.until) + time.Millisecond - 1).Milliseconds() // rounded up
	return fmt.Errorf("only %s are left for it: %w", time.Until(w.end).Round(time.Millisecond), &OverLimitError{a})
}
