// Package gatetest has fakes of a guard, a checker and a server with one slot, for the tests of the middleware.
package gatetest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// Guard throttles the keys that it has.
type Guard map[string]api.Transition

// Lookup implements gate.Guard.
func (g Guard) Lookup(key string) (api.Transition, bool) { d, ok := g[key]; return d, ok }

// Checker has one answer, and records its requests.
type Checker struct {
	Asked  []api.CheckRequest
	Answer api.CheckAnswer
	Err    error
}

// Check implements gate.Checker.
func (c *Checker) Check(_ context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	c.Asked = append(c.Asked, req)
	return c.Answer, c.Err
}

// OneSlot is a fake server with one slot. No rule matches its key "nobody".
type OneSlot struct {
	client.Checker
	Taken atomic.Bool
	Away  bool
	TTLMs int64 // of a slot; renewals of it are refused
	lost  atomic.Bool
}

// Client returns a client of the server.
func (s *OneSlot) Client(t testing.TB) *client.Client {
	t.Helper()
	c, err := client.New(s, client.Config{Retries: -1})
	testkit.Must(t, err)
	return c
}

// Reserve implements client.Reserver.
func (s *OneSlot) Reserve(_ context.Context, req api.ReservationRequest) (r api.ReservationOfAll, err error) {
	switch {
	case s.Away:
		return r, transport.NotSent(errors.New("refused"))
	case req.Key == "nobody":
		return r, api.ErrNoRule
	}
	r.Checks = []api.CheckAnswer{{RetryAfterMs: 1500}}
	if s.Taken.CompareAndSwap(false, true) {
		r.Allowed, r.ID, r.TTLMs = true, "0a-1", s.TTLMs
		s.lost.Store(false)
	}
	return r, nil
}

// Renew implements client.Reserver.
func (s *OneSlot) Renew(context.Context, string, api.RenewRequest) (api.Settlement, error) {
	s.lost.Store(true)
	return api.Settlement{}, api.ErrReservationExpired
}

// Commit implements client.Reserver.
func (s *OneSlot) Commit(ctx context.Context, _ string, _ api.CommitRequest) (api.Settlement, error) {
	if ctx.Err() != nil {
		return api.Settlement{}, transport.NotSent(ctx.Err())
	}
	if s.Taken.Store(false); s.lost.Load() {
		return api.Settlement{}, api.ErrReservationExpired
	}
	return api.Settlement{State: api.ReservationCommitted}, nil
}

// Cancel implements client.Reserver.
func (*OneSlot) Cancel(context.Context, string) (api.Settlement, error) {
	panic("a middleware commits its slot")
}
