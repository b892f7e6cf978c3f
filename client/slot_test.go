package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/internal/transport"
	"github.com/streamcounter/streamcounter/windows"
)

// Two slots are held at once, and a third is denied. A slot that is given back is free, and the other window is
// charged.
func TestSlots(t *testing.T) {
	jobs := rule("job", nil, windows.Window{Limit: 2, Per: time.Minute, InFlight: true},
		windows.Window{Limit: 100, Per: time.Hour})
	throughReserversProxy(t, jobs, func(t *testing.T, w *world, c client.Reserver, _ *streamtest.Proxy) {
		ctx, n := t.Context(), newClient(t, c, client.Config{Timeout: patience})
		var slots []*client.Slot
		for range 2 {
			s, err := n.Acquire(ctx, "job:1", 0)
			testkit.Must(t, err)
			slots = append(slots, s)
		}
		_, err := n.Acquire(ctx, "job:1", 1)
		var over *client.OverLimitError
		if !errors.Is(err, client.ErrOverLimit) || !errors.As(err, &over) || over.Answer.RetryAfterMs != 60_000 {
			t.Errorf("a third: %v", err)
		}
		testkit.Must(t, slots[0].Release(ctx))
		third, err := n.Acquire(ctx, "job:1", 1)
		testkit.Must(t, err)
		testkit.Must(t, slots[1].Commit(ctx, 7))
		testkit.Must(t, third.Cancel(ctx))
		k, err := w.service.Peek(ctx, "job:1")
		testkit.Must(t, err)
		if k.Windows[0].Used != 0 || k.Windows[1].Used != 8 {
			t.Errorf("%+v, want 0 in flight, and 1 and 7 charged", k.Windows)
		}
	})
}

// holder stands in for a server that takes reservations of 30s, with a time that a test moves. A
// test in its bubble ends only when no goroutine is left.
type holder struct {
	client.Checker
	began  time.Time
	said   []string // what came when
	leave  func()   // makes the caller leave when its reservation is made; may be nil
	renew  func(ctx context.Context) error
	settle func(ctx context.Context) error
}

func (h *holder) note(what string) {
	h.said = append(h.said, fmt.Sprint(what, " ", time.Since(h.began).Round(time.Millisecond)))
}

func (h *holder) Reserve(ctx context.Context, _ api.ReservationRequest) (api.ReservationOfAll, error) {
	if h.leave != nil {
		h.leave()
	}
	if ctx.Err() != nil {
		return api.ReservationOfAll{}, transport.Lost(ctx.Err())
	}
	h.note("reserve")
	return api.ReservationOfAll{Reserved: api.Reserved{ID: "0a-1", TTLMs: 30_000},
		ChecksAnswer: api.ChecksAnswer{Allowed: true, Checks: make([]api.CheckAnswer, 1)}}, nil
}

func (h *holder) Renew(ctx context.Context, _ string, _ api.RenewRequest) (s api.Settlement, err error) {
	h.note("renew")
	if h.renew != nil {
		err = h.renew(ctx)
	}
	return s, err
}

func (h *holder) Commit(ctx context.Context, _ string, req api.CommitRequest) (s api.Settlement, err error) {
	what := "commit"
	if req.Cost != nil {
		what = fmt.Sprint("commit of ", *req.Cost)
	}
	h.note(what)
	if h.settle != nil {
		err = h.settle(ctx)
	}
	return s, err
}

func (h *holder) Cancel(context.Context, string) (s api.Settlement, err error) {
	h.note("cancel")
	return s, nil
}

func inBubble(t *testing.T, test func(t *testing.T, h *holder, c *client.Client)) {
	synctest.Test(t, func(t *testing.T) {
		h := &holder{began: time.Now()}
		test(t, h, newClient(t, h, client.Config{Timeout: time.Second, Retries: -1}))
	})
}

func wantSaid(t *testing.T, h *holder, want ...string) {
	t.Helper()
	if !slices.Equal(h.said, want) {
		t.Errorf("the server was asked %q, want %q", h.said, want)
	}
}

// A slot is renewed at a third of its time until it is released, even if the caller's context has ended, because the
// work may go on.
func TestRenewals(t *testing.T) {
	inBubble(t, func(t *testing.T, h *holder, c *client.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		slot, err := c.Acquire(ctx, "job:1", 1)
		testkit.Must(t, err)
		time.Sleep(25 * time.Second) // the bubble's
		cancel()
		if <-slot.Context().Done(); !errors.Is(context.Cause(slot.Context()), context.Canceled) {
			t.Errorf("ended with %v", context.Cause(slot.Context()))
		}
		time.Sleep(10 * time.Second)
		testkit.Must(t, slot.Release(t.Context()))
		time.Sleep(time.Minute)
		wantSaid(t, h, "reserve 0s", "renew 10s", "renew 20s", "renew 30s", "commit 35s")
	})
}

// Renewals without an answer are tried again. At the end of its time a slot is lost, not later.
func TestASlotThatNobodyRenews(t *testing.T) {
	inBubble(t, func(t *testing.T, h *holder, c *client.Client) {
		h.renew = func(ctx context.Context) error {
			if time.Since(h.began) < 15*time.Second {
				return nil
			}
			<-ctx.Done()
			return transport.Lost(ctx.Err())
		}
		slot, err := c.Acquire(t.Context(), "job:1", 1)
		testkit.Must(t, err)
		<-slot.Context().Done()
		cause := context.Cause(slot.Context())
		if !errors.Is(cause, client.ErrSlotLost) || !errors.Is(cause, api.ErrUnavailable) {
			t.Errorf("ended with %v", cause)
		}
		if at := time.Since(h.began); at != 40*time.Second { // it was renewed at 10s
			t.Errorf("ended after %s", at)
		}
		if len(h.said) < 6 {
			t.Errorf("%q: tried %d times", h.said, len(h.said)-2)
		}
		testkit.Must(t, slot.Release(t.Context()))
	})
	inBubble(t, func(t *testing.T, h *holder, c *client.Client) {
		failures := 3
		h.renew = func(context.Context) error {
			if failures--; failures >= 0 {
				return transport.NotSent(errors.New("refused"))
			}
			return nil
		}
		slot, err := c.Acquire(t.Context(), "job:1", 1)
		testkit.Must(t, err)
		time.Sleep(39 * time.Second)
		testkit.Must(t, slot.Context().Err())
		testkit.Must(t, slot.Cancel(t.Context()))
		wantSaid(t, h, "reserve 0s", "renew 10s", "renew 11s", "renew 12s", "renew 13s", "renew 23s", "renew 33s",
			"cancel 39s")
	})
}

// The server says at the next renewal that a slot does not exist any more, and again at the release.
func TestASlotIsLost(t *testing.T) {
	inBubble(t, func(t *testing.T, h *holder, c *client.Client) {
		h.renew = func(context.Context) error { return api.ErrReservationSettled }
		h.settle = h.renew
		slot, err := c.Acquire(t.Context(), "job:1", 1)
		testkit.Must(t, err)
		<-slot.Context().Done()
		if cause := context.Cause(slot.Context()); !errors.Is(cause, client.ErrSlotLost) {
			t.Errorf("the context ended with %v", cause)
		}
		for range 2 {
			if err := slot.Release(t.Context()); !errors.Is(err, api.ErrReservationSettled) {
				t.Errorf("released after it was lost: %v", err)
			}
		}
		wantSaid(t, h, "reserve 0s", "renew 10s", "commit 10s")
	})
}

// The first end is the one that counts. It is sent again if its outcome is not known.
func TestTheFirstEndCounts(t *testing.T) {
	inBubble(t, func(t *testing.T, h *holder, c *client.Client) {
		slot, err := c.Acquire(t.Context(), "job:1", 1)
		testkit.Must(t, err)
		for _, end := range []error{transport.Lost(errGone), transport.NotSent(errGone)} {
			h.settle = func(context.Context) error { return end }
			if err := slot.Commit(t.Context(), 7); !errors.Is(err, api.ErrOutcomeUnknown) ||
				errors.Is(err, api.ErrNotSent) {
				t.Error(err)
			}
		}
		h.settle = nil
		for range 2 {
			testkit.Must(t, slot.Release(t.Context()))
		}
		if cause := context.Cause(slot.Context()); cause == nil || errors.Is(cause, client.ErrSlotLost) {
			t.Errorf("the context ended with %v", cause)
		}
		wantSaid(t, h, "reserve 0s", "commit of 7 0s", "commit of 7 0s", "commit of 7 0s")
	})
}

// A caller that leaves while it waits for a slot leaves no slot taken.
func TestACallerWhoLeavesWhileAcquiring(t *testing.T) {
	inBubble(t, func(t *testing.T, h *holder, c *client.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		h.leave = cancel
		for range 2 {
			if slot, err := c.Acquire(ctx, "job:1", 1); slot != nil || !errors.Is(err, context.Canceled) {
				t.Errorf("%v, %v", slot, err)
			}
		}
		wantSaid(t, h, "reserve 0s", "cancel 0s")
	})
}
