package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
)

// ErrOverLimit is wrapped by the error of Acquire where there is no free slot, and of Wait where the wait would be
// too long; errors.As finds an OverLimitError in it, which has the answer.
var ErrOverLimit = errors.New("over the limit")

// ErrSlotLost is the cause (context.Cause) that the context of a slot ends with when it no longer
// holds: it has expired, somebody else has settled it, or nobody answered until its end.
var ErrSlotLost = errors.New("slot lost")

// OverLimitError is a denied slot, or a check that Wait does not wait for. It wraps ErrOverLimit.
type OverLimitError struct {
	// Answer says of the key what a denied check says, RetryAfterMs included. If Wait was behind other
	// callers, it is the answer to the first of them.
	Answer api.CheckAnswer
}

// Error implements error.
func (e *OverLimitError) Error() string {
	text := fmt.Sprintf("%s of rule %q", ErrOverLimit, e.Answer.Rule)
	if e.Answer.Rule == "" {
		text = fmt.Sprintf("%s: %s", ErrOverLimit, e.Answer.Note)
	}
	switch ms := e.Answer.RetryAfterMs; {
	case ms > 0:
		return fmt.Sprintf("%s: retry after %s", text, time.Duration(ms)*time.Millisecond)
	case ms < 0:
		return text + ": no wait helps"
	}
	return text
}

// Unwrap gives ErrOverLimit.
func (e *OverLimitError) Unwrap() error { return ErrOverLimit }

// Slot is a reservation that is renewed in the background until it is released or lost.
// Whoever acquires one calls Release in any case, as in
//
//	slot, err := c.Acquire(ctx, "job:render", 1)
//	…
//	defer slot.Release(context.WithoutCancel(ctx))
//	work(slot.Context())
//
// Its methods may be called by many goroutines.
type Slot struct {
	// Answer is that of the reservation, as of a check.
	Answer api.CheckAnswer

	client *Client
	id     string
	ttl    time.Duration
	ctx    context.Context
	end    context.CancelCauseFunc
	stop   context.CancelFunc // of renewals
	done   chan struct{}      // closed when no renewal comes any more

	mu     sync.Mutex
	settle func(context.Context) error // nil until one of Release, Commit, Cancel has said how
	over   bool                        // it is settled for certain
	err    error                       // of that
}

// Acquire takes a slot of a key with an in_flight window, of the cost given (0 means 1), and renews it
// at a third of its time. A key without such a window can be held too: then for a minute
// at a time, and all that its rule counts is reserved.
//
// Where there is none free the error wraps ErrOverLimit and is an OverLimitError. No policy
// hands out a slot: where nobody answers the error wraps api.ErrUnavailable.
//
// A ctx that ends meanwhile is an error, and the slot is given back, so it may take until
// Config.Timeout for Acquire to return. Where even then nobody has answered (api.ErrOutcomeUnknown) a slot may
// be taken until its time is over.
func (c *Client) Acquire(ctx context.Context, key string, cost int64) (*Slot, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("acquiring a slot: %w", err)
	}
	began := time.Now()
	whole := context.WithoutCancel(ctx) // a call that is cut off would leave a slot that nobody knows of
	got, err := c.Reserve(whole, api.ReservationRequest{CheckRequest: api.CheckRequest{Key: key, Cost: cost}})
	switch {
	case errors.Is(err, api.ErrNoRule) && c.config.UnmatchedKeys == Deny:
		return nil, &OverLimitError{unmatched(key, cost)}
	case err != nil:
		return nil, fmt.Errorf("acquiring a slot: %w", err)
	case !got.Allowed:
		return nil, &OverLimitError{got.Checks[0]}
	case ctx.Err() != nil:
		_, _ = c.Cancel(whole, got.ID) // else it ends with its time
		return nil, fmt.Errorf("acquiring a slot: %w", ctx.Err())
	}
	s := &Slot{Answer: got.Checks[0], client: c, id: got.ID, ttl: time.Duration(got.TTLMs) * time.Millisecond,
		done: make(chan struct{})}
	s.ctx, s.end = context.WithCancelCause(ctx)
	renewals, stop := context.WithCancel(whole)
	s.stop = stop
	go s.renew(renewals, began)
	return s, nil
}

// ID is that of the reservation.
func (s *Slot) ID() string { return s.id }

// Context is that of Acquire, and ends also when the slot is lost, with a cause (context.Cause) that
// wraps ErrSlotLost, and when it is released. The slot is held until then: also after
// the context of Acquire has ended, as what was begun may still be going on.
func (s *Slot) Context() context.Context { return s.ctx }

// Release gives the slot back and charges what was reserved to the other windows of its rule. The error
// tells where that was not possible; the slot is then free when its time is over.
//
// The first of Release, Commit and Cancel says how the slot ends. A later one, whichever it is, sends
// that again where its outcome is not known, and else does nothing and gives the same error.
func (s *Slot) Release(ctx context.Context) error {
	return s.settleAs(ctx, func(ctx context.Context) error {
		_, err := s.client.Commit(ctx, s.id, api.CommitRequest{})
		return err
	})
}

// Commit gives the slot back and charges cost, which may be 0 or above what was reserved.
func (s *Slot) Commit(ctx context.Context, cost int64) error {
	return s.settleAs(ctx, func(ctx context.Context) error {
		_, err := s.client.Commit(ctx, s.id, api.CommitRequest{Cost: &cost})
		return err
	})
}

// Cancel gives the slot back and charges nothing.
func (s *Slot) Cancel(ctx context.Context) error {
	return s.settleAs(ctx, func(ctx context.Context) error {
		_, err := s.client.Cancel(ctx, s.id)
		return err
	})
}

func (s *Slot) settleAs(ctx context.Context, settle func(context.Context) error) error {
	s.stop()
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(context.Canceled) // but where it was lost before
	if s.over {
		return s.err
	}
	if s.settle == nil {
		s.settle = settle
	}
	if err := s.settle(ctx); err != nil {
		s.err = fmt.Errorf("releasing slot %s: %w", s.id, err)
		s.over = doesNotStand(err)
		return s.err
	}
	s.over, s.err = true, nil
	return nil
}

// doesNotStand: the server says so, and asking again changes nothing.
func doesNotStand(err error) bool {
	return errors.Is(err, api.ErrNoReservation) || errors.Is(err, api.ErrReservationExpired) ||
		errors.Is(err, api.ErrReservationSettled)
}

// renew keeps the slot until ctx ends or it is lost. It stands from a time that is not after `began`,
// so that here it ends no later than in Redis.
func (s *Slot) renew(ctx context.Context, began time.Time) {
	defer close(s.done)
	defer s.stop()
	end, next := began.Add(s.ttl), began.Add(s.ttl/3)
	var err error
	for pause.For(ctx, time.Until(next)) {
		if began = time.Now(); !began.Before(end) {
			s.end(lost(err))
			return
		}
		if err = s.renewOnce(ctx, end); err == nil {
			end, next = began.Add(s.ttl), began.Add(s.ttl/3)
			continue
		}
		if ctx.Err() == nil && doesNotStand(err) {
			s.end(lost(err))
			return
		}
		next = time.Now().Add(min(max(s.ttl/20, time.Millisecond), time.Second))
		if next.After(end) {
			next = end
		}
	}
}

func (s *Slot) renewOnce(ctx context.Context, end time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	_, err := s.client.Renew(ctx, s.id, api.RenewRequest{})
	return err
}

func lost(err error) error {
	if err == nil { // this process stood still
		return fmt.Errorf("%w: it was not renewed in time", ErrSlotLost)
	}
	return fmt.Errorf("%w: %w", ErrSlotLost, err)
}
