package sinks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/internal/pause"
)

// A lock expires after lockTTL by the server's clock unless it is renewed. Its holder stops if it has not renewed the
// lock for lockEnd by its own clock. So it stops before another process can have the lock.
const (
	lockTTL   = 6 * time.Second
	lockEnd   = 4 * time.Second
	lockEvery = time.Second
)

// errHeld: another process has the lock.
var errHeld = errors.New("another process delivers for this sink")

// errBusy: a NATS cluster is storing another message of the lock at this moment.
var errBusy = errors.New("the lock is being written")

// errLate: the lock was not renewed for lockEnd.
var errLate = errors.New("JetStream has not renewed it")

// lock is the right to deliver for one sink.
type lock struct {
	ctx  context.Context // ends when the lock is lost or given back
	lose context.CancelCauseFunc
	// put publishes a message if the last one of the lock's subject has this sequence; else errHeld.
	put  func(ctx context.Context, m *nats.Msg, last uint64) (sequence uint64, err error)
	take func(ctx context.Context, last uint64) (sequence uint64, err error)
	give func(ctx context.Context, last uint64) error

	renewing sync.WaitGroup
	sending  sync.Mutex // held during put and take: a cluster refuses two at a time
	sequence uint64     // guarded by sending
	mu       sync.Mutex
	renewed  time.Time
	watchdog *time.Timer
}

// newLock takes the lock and keeps it until end is called, or until it is lost. The lock outlives ctx.
func newLock(ctx context.Context, l *lock) (*lock, error) {
	l.renewed = time.Now()
	var err error
	if l.sequence, err = l.take(ctx, 0); err != nil {
		return nil, err
	}
	l.ctx, l.lose = context.WithCancelCause(context.WithoutCancel(ctx))
	l.watchdog = time.AfterFunc(lockEnd-time.Since(l.renewed), func() { l.lost(errLate) })
	l.renewing.Go(l.renew)
	return l, nil
}

func (l *lock) lost(why error) { l.lose(fmt.Errorf("the lock is lost: %w", why)) }

// holds reports whether this process still has the lock. It reads the clock, because a frozen process can go on
// before its timers fire.
func (l *lock) holds() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.renewed) >= lockEnd {
		l.lost(errLate)
	}
	return l.ctx.Err() == nil
}

func (l *lock) renew() {
	for pause.For(l.ctx, lockEvery) {
		l.sending.Lock()
		now := time.Now()
		within, cancel := context.WithTimeout(l.ctx, lockEvery)
		next, err := l.take(within, l.sequence)
		cancel()
		if err == nil {
			l.sequence = next
		}
		l.sending.Unlock()
		if errors.Is(err, errHeld) {
			l.lost(err)
		}
		if err == nil && l.holds() {
			l.mu.Lock()
			l.renewed = now
			l.watchdog.Reset(lockEnd - time.Since(now))
			l.mu.Unlock()
		}
	}
}

// publish publishes a message to the stream of the lock, unless another process has taken the lock.
func (l *lock) publish(ctx context.Context, m *nats.Msg) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	within, cancel := context.WithTimeout(ctx, lockEvery)
	defer cancel()
	_, err := l.put(within, m, l.sequence)
	if errors.Is(err, errHeld) {
		l.lost(err)
	}
	return err
}

// end gives the lock back, if JetStream answers in time.
func (l *lock) end(most time.Duration) {
	l.lose(nil)
	l.renewing.Wait()
	l.watchdog.Stop()
	within, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), most)
	defer cancel()
	_ = l.give(within, l.sequence) // if this fails, the lock expires
}

// otherLock is the lock of another process, as this process last read it.
type otherLock struct {
	holder    string
	sequence  uint64
	stored    time.Time // by the server's clock: a recreated stream begins its sequence again
	since     time.Time // when this process first read this state, by its own clock
	takenOver bool      // this process took the lock over
}

// update records the stored lock, and reports whether nobody renews it. A holder renews its lock every lockEvery, and
// stops after lockEnd. The server should remove the lock after lockTTL, but does not always do so: after a clean stop
// and a later kill, it can have an older message again, without a time to live.
func (r *otherLock) update(m *jetstream.RawStreamMsg) (abandoned bool) {
	now := time.Now()
	if m.Sequence != r.sequence || !m.Time.Equal(r.stored) {
		*r = otherLock{holder: string(m.Data), sequence: m.Sequence, stored: m.Time, since: now}
	}
	return now.Sub(r.since) > lockTTL
}

// lock takes the sink's lock, and keeps it until it ends. r is what the caller knows about the lock of another
// process.
func (s state) lock(ctx context.Context, name string, r *otherLock) (*lock, error) {
	subject := s.subject("lock")
	put := func(ctx context.Context, m *nats.Msg, last uint64) (uint64, error) {
		ack, err := s.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequenceForSubject(last, subject),
			jetstream.WithRetryAttempts(0))
		var refused *jetstream.APIError
		switch {
		case errors.As(err, &refused) && refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence:
			return 0, errHeld
		case errors.As(err, &refused) && refused.ErrorCode == 10164: // the library has no name for it
			return 0, errBusy
		case err != nil:
			return 0, fmt.Errorf("publishing to %s: %w", m.Subject, err)
		}
		return ack.Sequence, nil
	}
	message := func(data, ttl string) *nats.Msg {
		m := &nats.Msg{Subject: subject, Data: []byte(data), Header: nats.Header{}}
		m.Header.Set(jetstream.MsgTTLHeader, ttl)
		return m
	}
	take := func(ctx context.Context, last uint64) (uint64, error) {
		next, err := put(ctx, message(name, lockTTL.String()), last)
		if last == 0 && errors.Is(err, errBusy) {
			return 0, errHeld
		}
		if !errors.Is(err, errHeld) {
			return next, err
		}
		// The stored lock may be ours, if the answer to a renewal was lost.
		held, err := s.last(ctx, "lock")
		switch {
		case err != nil:
			return 0, err
		case held == nil:
			return 0, errHeld
		case string(held.Data) == name:
		case last == 0 && r.update(held):
			r.takenOver = true
		default:
			return 0, errHeld
		}
		return put(ctx, message(name, lockTTL.String()), held.Sequence)
	}
	// An empty message, which expires after a second.
	give := func(ctx context.Context, last uint64) error {
		_, err := put(ctx, message("", "1s"), last)
		return err
	}
	return newLock(ctx, &lock{put: put, take: take, give: give})
}
