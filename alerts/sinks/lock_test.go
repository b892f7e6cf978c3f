package sinks

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// If JetStream does not renew a lock, the lock ends before another process can have it, even if no answer comes at
// all. If JetStream renews it, the lock stays.
func TestALockEndsBeforeAnotherBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Bool
		var last atomic.Int64 // when JetStream stored it last
		take := func(ctx context.Context, sequence uint64) (uint64, error) {
			if silent.Load() {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			last.Store(time.Now().UnixNano())
			return sequence + 1, nil
		}
		l, err := newLock(t.Context(), &lock{take: take, give: func(context.Context, uint64) error { return nil }})
		testkit.Must(t, err)
		time.Sleep(time.Hour)
		if !l.holds() {
			t.Fatalf("a lock that is renewed is lost: %v", context.Cause(l.ctx))
		}
		synctest.Wait()
		silent.Store(true)
		<-l.ctx.Done()
		if d := time.Since(time.Unix(0, last.Load())); d < lockEnd || d >= lockTTL-lockEvery {
			t.Errorf("it ended %s after JetStream stored it", d)
		}
		if l.holds() || !errors.Is(context.Cause(l.ctx), errLate) {
			t.Errorf("it holds, or ended by %v", context.Cause(l.ctx))
		}
		l.end(0)
	})
}

// A cluster refuses a message while it stores another one of the same lock, so a process sends one at a time.
func TestALockSendsOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *lock
		sends := 0
		send := func(sequence uint64) (uint64, error) {
			if sends++; l.sending.TryLock() {
				t.Error("it sends without its mutex")
				l.sending.Unlock()
			}
			return sequence + 1, nil
		}
		l = &lock{
			put:  func(_ context.Context, _ *nats.Msg, last uint64) (uint64, error) { return send(last) },
			take: func(_ context.Context, last uint64) (uint64, error) { return send(last) },
			give: func(context.Context, uint64) error { return nil },
		}
		l.sending.Lock() // nobody has a new lock
		_, err := newLock(t.Context(), l)
		l.sending.Unlock()
		testkit.Must(t, err)
		time.Sleep(lockEvery + lockEvery/2)
		testkit.Must(t, l.publish(t.Context(), nil))
		if l.end(0); sends != 3 {
			t.Errorf("it was taken, renewed and used in %d messages", sends)
		}
	})
}

// A process that was frozen finds by the clock that its lock has ended, whichever of its goroutines runs first.
func TestAFrozenProcessLooksAtTheClock(t *testing.T) {
	l := &lock{renewed: time.Now().Add(-lockEnd)}
	l.ctx, l.lose = context.WithCancelCause(t.Context())
	if l.holds() || l.ctx.Err() == nil {
		t.Error("it holds")
	}
}

// newState returns the state of a sink, under its own prefix.
func newState(t *testing.T, sink string) state {
	t.Helper()
	js := streamtest.JetStream(t, streamtest.NATS(t))
	s := state{js, streamtest.Prefix(t), sink}
	testkit.Must(t, ensure(t.Context(), js, s.prefix, 1))
	return s
}

// A former holder can write neither alerts that fire nor the position, even if the messages of the new holder are gone
// again. A holder that lost the answer to a renewal keeps its lock.
func TestOnlyTheHolderWrites(t *testing.T) {
	s := newState(t, "am")
	first, err := s.lock(t.Context(), "first", &otherLock{})
	testkit.Must(t, err)
	defer first.end(0)
	a := Sample(api.StateRaised, time.Now())
	testkit.Must(t, s.note(t.Context(), first, a))
	if _, err := s.lock(t.Context(), "second", &otherLock{}); !errors.Is(err, errHeld) {
		t.Fatalf("two hold it: %v", err)
	}
	first.sending.Lock() // it is frozen from here on
	again, err := first.take(t.Context(), first.sequence-1)
	testkit.Must(t, err)
	if again <= first.sequence {
		t.Errorf("%d, and then %d", first.sequence, again)
	}
	// The server removes a lock that is not renewed.
	stream, err := s.js.Stream(t.Context(), StreamName(s.prefix))
	testkit.Must(t, err)
	testkit.Must(t, stream.DeleteMsg(t.Context(), again))
	second, err := s.lock(t.Context(), "second", &otherLock{})
	testkit.Must(t, err)
	defer second.end(0)
	a.State = api.StateCleared
	testkit.Must(t, s.note(t.Context(), second, a))
	first.sending.Unlock()
	a.State = api.StateRaised
	if err := s.note(t.Context(), first, a); !errors.Is(err, errHeld) {
		t.Errorf("the one before notes an active alert: %v", err)
	}
	if err := s.setPosition(t.Context(), first, 7); !errors.Is(err, errHeld) {
		t.Errorf("the one before sets the position: %v", err)
	}
	if first.holds() || !second.holds() {
		t.Error("the first holds, or the second does not")
	}
	if list, err := s.activeAlerts(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%v stand, %v", list, err)
	}
}

// A cleared alert ends on the server a second after it was noted, perhaps before it comes to a sink that reads what is
// active.
func TestAnAlertThatEndsBeforeItIsRead(t *testing.T) {
	s := newState(t, "am")
	l, err := s.lock(t.Context(), "first", &otherLock{})
	testkit.Must(t, err)
	defer l.end(0)
	testkit.Must(t, s.note(t.Context(), l, Sample(api.StateRaised, time.Now())))
	consumer, err := s.activeConsumer(t.Context())
	testkit.Must(t, err)
	if n := consumer.CachedInfo().NumPending; n != 1 {
		t.Fatalf("%d alerts to read, want 1", n)
	}
	stream, err := s.js.Stream(t.Context(), StreamName(s.prefix))
	testkit.Must(t, err)
	testkit.Must(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject(s.subject("alert.>"))))
	if list, err := alertsOf(t.Context(), consumer); err != nil || len(list) != 0 {
		t.Errorf("%v are active, %v", list, err)
	}
}

// After a clean stop and a kill of nats-server a lock message can lack its time to live. A sink takes such a
// lock over once nobody has renewed it for lockTTL by its own clock. It never takes over one that is renewed.
func TestALockThatNobodyRenews(t *testing.T) {
	s := newState(t, "pager")
	publish := func() {
		t.Helper()
		_, err := s.js.Publish(t.Context(), s.subject("lock"), []byte("dead"))
		testkit.Must(t, err)
	}
	r := &otherLock{}
	refused := func(when string) {
		t.Helper()
		if _, err := s.lock(t.Context(), "living", r); !errors.Is(err, errHeld) {
			t.Fatalf("%s: %v", when, err)
		}
	}
	publish()
	refused("at first")
	if r.holder != "dead" {
		t.Errorf("the holder is %q", r.holder)
	}
	r.since = r.since.Add(-lockTTL + lockEvery) // as if it had been seen so long ago
	refused("before its time")
	r.since = r.since.Add(-lockTTL)
	publish()
	refused("renewed meanwhile")
	r.since = r.since.Add(-lockTTL - time.Millisecond)
	l, err := s.lock(t.Context(), "living", r)
	testkit.Must(t, err)
	defer l.end(0)
	if !r.takenOver || !l.holds() {
		t.Errorf("%+v, holds %v", r, l.holds())
	}
}
