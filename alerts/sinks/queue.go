package sinks

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
)

// maxAttempts is how many requests to one endpoint are under way at a time.
const maxAttempts = 8

// held is an alert that this process has received and has not acknowledged.
type held struct {
	msg      jetstream.Msg
	sequence uint64 // in the stream
	alert    api.Transition
}

// queue sends alerts to one endpoint: those of one key in order, those of different keys concurrently. An alert that
// the endpoint does not take holds up only its own key.
type queue struct {
	deliver func(context.Context, api.Transition) error // one attempt
	done    func(h *held, outcome string, err error)
	retried func(h *held, err error, wait time.Duration)
	giveUp  time.Duration
	backoff Backoff
	slots   chan struct{}

	mu          sync.Mutex
	keys        map[string][]*held // key → the waiting alerts; the first is being sent
	pausedUntil time.Time          // no request is sent until then, because of Retry-After
	failures    int                // in a row, of all keys
	back        chan struct{}      // closed when the endpoint answers again after it was down
	working     sync.WaitGroup
}

func newQueue(q *queue) *queue {
	q.slots, q.keys, q.back = make(chan struct{}, maxAttempts), map[string][]*held{}, make(chan struct{})
	return q
}

// Backoff is how long a failed delivery waits before the next attempt. The wait is From at first, doubles each time,
// up to Most, and is then reduced to a random part between a half and all of it.
type Backoff struct{ From, Most time.Duration }

func (b Backoff) wait(failures int) time.Duration {
	d := cmp.Or(b.Most, time.Minute)
	if shift := min(failures-1, 20); cmp.Or(b.From, time.Second)<<shift < d {
		d = cmp.Or(b.From, time.Second) << shift
	}
	return d/2 + rand.N(d/2+1)
}

// add puts an alert behind the others of its key. The end of ctx ends waiting, but not an attempt that has begun,
// which has its own context.
func (q *queue) add(ctx context.Context, h *held) {
	q.mu.Lock()
	defer q.mu.Unlock()
	key := h.alert.Key
	q.keys[key] = append(q.keys[key], h)
	if len(q.keys[key]) == 1 {
		q.working.Go(func() { q.work(ctx, key) })
	}
}

// work sends the alerts in the queue of a key until the queue is empty, or ctx ends.
func (q *queue) work(ctx context.Context, key string) {
	for {
		q.mu.Lock()
		h := q.keys[key][0]
		q.mu.Unlock()
		if !q.send(ctx, h) {
			return
		}
		q.mu.Lock()
		q.keys[key] = q.keys[key][1:]
		empty := len(q.keys[key]) == 0
		if empty {
			delete(q.keys, key)
		}
		q.mu.Unlock()
		if empty {
			return
		}
	}
}

// send tries until the endpoint has taken the alert or it can never be delivered. It returns false if ctx ends before
// that.
func (q *queue) send(ctx context.Context, h *held) bool {
	for failures := 1; ; failures++ {
		if !q.enter(ctx) {
			return false
		}
		err := q.deliver(ctx, h.alert)
		<-q.slots
		back := q.note(err == nil)
		var r refusal
		switch {
		case err == nil:
			q.done(h, "delivered", nil)
			return true
		case errors.As(err, &r) && r.final():
			q.done(h, "dropped", err)
			return true
		case ctx.Err() != nil: // the attempt may have failed because of that
			return false
		case time.Since(h.alert.At()) > q.giveUp:
			q.done(h, "expired", err)
			return true
		}
		wait := q.backoff.wait(failures)
		if r.after > 0 {
			q.pauseFor(r.after)
			wait = r.after
		}
		q.retried(h, err, wait)
		pause.Closed(ctx, back, time.Now().Add(wait))
		if ctx.Err() != nil {
			return false
		}
	}
}

// downAfter is the number of failures in a row after which an endpoint counts as down. With fewer failures, the
// endpoint may only be unable to take one of the alerts.
const downAfter = maxAttempts

// note counts failures. If an endpoint that was down takes an alert again, all waiting alerts are tried at once.
func (q *queue) note(delivered bool) (back <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if delivered {
		if q.failures >= downAfter {
			close(q.back)
			q.back = make(chan struct{})
		}
		q.failures = 0
	} else {
		q.failures++
	}
	return q.back
}

// enter waits for a slot, and for the end of a pause that the endpoint requested.
func (q *queue) enter(ctx context.Context) bool {
	for {
		select {
		case q.slots <- struct{}{}:
		case <-ctx.Done():
			return false
		}
		q.mu.Lock()
		left := time.Until(q.pausedUntil)
		q.mu.Unlock()
		if ctx.Err() == nil && left <= 0 {
			return true
		}
		<-q.slots
		if !pause.For(ctx, left) {
			return false
		}
	}
}

func (q *queue) pauseFor(d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if until := time.Now().Add(d); until.After(q.pausedUntil) {
		q.pausedUntil = until
	}
}
