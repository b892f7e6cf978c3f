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

// ErrOverLimit is wrapped by the error of Acquire if there is no free slot, and by the error of Wait if the wait
// would be too long. errors.As finds an OverLimitError in it, which has the answer, except if MaxWait passed behind
// other callers of Wait.
var ErrOverLimit = errors.New("over the limit")

// ErrSlotLost is the cause (context.Cause) with which the context of a slot ends when the slot is lost: it has
// expired, somebody else has settled it, or nobody answered until its end.
var ErrSlotLost = errors.New("slot lost")

// OverLimitError is a denied slot, or a check that Wait does not wait for. It wraps ErrOverLimit.
type OverLimitError struct {
	// Answer has the same fields as the answer to a denied check of the key, including RetryAfterMs. If Wait was
	// behind other callers, it is the answer to the first of them.
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

// Unwrap returns ErrOverLimit.
func (e *OverLimitError) Unwrap() error { return ErrOverLimit }

// Slot is a reservation that is renewed in the background until it is released or lost. A caller that acquires one
// must call Release in any case, as in
//
//	slot, err := c.Acquire(ctx, "job:render", 1)
//	…
//	defer slot.Release(context.WithoutCancel(ctx))
//	work(slot.Context())
//
// Its methods may be called by many goroutines.
type Slot struct {
	// Answer is the answer to the reservation, in the form of a check's answer.
	Answer api.CheckAnswer

	client *Client
	id     string
	ttl    time.Duration
	ctx    context.Context
	end    context.CancelCauseFunc
	stop   context.CancelFunc // ends the renewals
	done   chan struct{}      // closed when no renewal comes any more

	mu     sync.Mutex
	settle func(context.Context) error // nil until the first Release, Commit or Cancel
	over   bool                        // it is settled for certain
	err    error                       // the error of settling
}

// Acquire takes a slot of a key with an in_flight window, with the given cost (0 means 1). It renews the slot after
// each third of its time. A key without such a window can be held too: then for a minute at a time, with the cost
// reserved in all that its rule counts.
//
// If no slot is free, the error wraps ErrOverLimit and is an OverLimitError. No policy grants a slot: if nobody
// answers, the error wraps api.ErrUnavailable.
//
// If ctx ends during the call, Acquire waits for the answer, gives the slot back and returns an error. So it may
// return up to two times Config.Timeout later: one for the answer, one to give the slot back. If nobody has answered
// even then (api.ErrOutcomeUnknown), a slot may be taken until its time is over.
func (c *Client) Acquire(ctx context.Context, key string, cost int64) (*Slot, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("acquiring a slot: %w", err)
	}
	began := time.Now()
	uncut := context.WithoutCancel(ctx) // a call that is cut off could leave a slot that nobody releases
	got, err := c.Reserve(uncut, api.ReservationRequest{CheckRequest: api.CheckRequest{Key: key, Cost: cost}})
	switch {
	case errors.Is(err, api.ErrNoRule) && c.config.UnmatchedKeys == Deny:
		return nil, &OverLimitError{unmatched(key, cost)}
	case err != nil:
		return nil, fmt.Errorf("acquiring a slot: %w", err)
	case !got.Allowed:
		return nil, &OverLimitError{got.Checks[0]}
	case ctx.Err() != nil:
		_, _ = c.Cancel(uncut, got.ID) // if this fails, the slot is free when its time is over
		return nil, fmt.Errorf("acquiring a slot: %w", ctx.Err())
	}
	s := &Slot{Answer: got.Checks[0], client: c, id: got.ID, ttl: time.Duration(got.TTLMs) * time.Millisecond,
		done: make(chan struct{})}
	s.ctx, s.end = context.WithCancelCause(ctx)
	renewals, stop := context.WithCancel(uncut)
	s.stop = stop
	go s.renew(renewals, began)
	return s, nil
}

// ID returns the id of the reservation.
func (s *Slot) ID() string { return s.id }

// Context returns a context that ends with the context of Acquire, when the slot is lost, with a cause
// (context.Cause) that wraps ErrSlotLost, and when the slot is released. The slot is held until it is lost or
// released, also after the context of Acquire has ended, because the work may still be going on.
func (s *Slot) Context() context.Context { return s.ctx }

// Release gives the slot back and charges what was reserved to the other windows of its rule. If that was not
// possible, it returns an error, and the slot is free when its time is over.
//
// The first call of Release, Commit or Cancel decides how the slot ends. A later call of any of them sends the first
// one again if its outcome is not known. Otherwise it does nothing and returns the same error.
func (s *Slot) Release(ctx context.Context) error {
	return s.commit(ctx, api.CommitRequest{})
}

// Commit gives the slot back and charges cost, which may be 0 or above what was reserved.
func (s *Slot) Commit(ctx context.Context, cost int64) error {
	return s.commit(ctx, api.CommitRequest{Cost: &cost})
}

func (s *Slot) commit(ctx context.Context, req api.CommitRequest) error {
	return s.settleAs(ctx, func(ctx context.Context) error {
		_, err := s.client.Commit(ctx, s.id, req)
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
	s.end(context.Canceled) // without effect if the slot was lost before
	if s.over {
		return s.err
	}
	if s.settle == nil {
		s.settle = settle
	}
	if err := s.settle(ctx); err != nil {
		s.err = errorAfter(s.err, fmt.Errorf("releasing slot %s: %w", s.id, err))
		s.over = isNotOpen(err)
		return s.err
	}
	s.over, s.err = true, nil
	return nil
}

// isNotOpen reports whether the server said that the reservation is not open. A retry changes nothing then.
func isNotOpen(err error) bool {
	return errors.Is(err, api.ErrNoReservation) || errors.Is(err, api.ErrReservationExpired) ||
		errors.Is(err, api.ErrReservationSettled)
}

// renew keeps the slot until ctx ends or it is lost. Its time in Redis begins at `began` or later, so that it ends
// here no later than in Redis.
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
		if ctx.Err() == nil && isNotOpen(err) {
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
	if err == nil { // this process was suspended
		return fmt.Errorf("%w: it was not renewed in time", ErrSlotLost)
	}
	return fmt.Errorf("%w: %w", ErrSlotLost, err)
}
