package reservations

import (
	"context"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/lua"
)

// ReserveState is the outcome of a request for a reservation.
type ReserveState int64

// The states of a reservation that was requested.
const (
	Denied          ReserveState = 0
	Reserved        ReserveState = 1
	AlreadyReserved ReserveState = 2  // by an earlier call with the same request
	SettledBefore   ReserveState = -1 // an earlier call reserved it, and it is settled
	OtherRequest    ReserveState = -2 // an earlier call reserved it, for another request
)

// Reservation is the outcome of a request for a reservation.
type Reservation struct {
	counters.Verdict // in the order of the requests
	State            ReserveState
	// ExpiresMs is when it expires, by Redis's clock.
	ExpiresMs int64
}

// Reserve reserves the costs of the requests for ttl, all or none, under an id from ID.
// All keys are in one shard; package check reserves in several shards. The fingerprint identifies the
// request. The same id may be sent again with the same fingerprint, and nothing is reserved twice.
func (s *Store) Reserve(ctx context.Context, id string, ttl time.Duration, fingerprint string,
	requests []counters.Request,
) (Reservation, error) {
	var out Reservation
	err := s.counter.UnderPlans(requests, func() error {
		c := s.callWith(requests, onExpiry)
		r := c.run(ctx, "reserve", id, ttl.Milliseconds(), "", fingerprint)
		state, expires, transitions := ReserveState(r.Integer()), r.Integer(), r.Integer()
		items, err := c.states(r, (*lua.Reply).AnswerWithShadows)
		if err != nil {
			return err
		}
		out = Reservation{State: state, ExpiresMs: expires, Verdict: counters.Verdict{Atomic: true, Items: items,
			Allowed: state == Reserved || state == AlreadyReserved, Transitions: transitions}}
		return nil
	})
	return out, err
}

// Withdraw cancels what Reserve has reserved in one shard, and removes the id there. Call it if
// another shard has denied the rest of the request.
func (s *Store) Withdraw(ctx context.Context, id string, requests []counters.Request) error {
	free := slices.Clone(requests)
	for i := range free {
		free[i].Cost = 0
	}
	return s.counter.UnderPlans(free, func() error {
		_, _, err := s.callWith(free, onExpiry).settle(ctx, id, withdraw, s.rememberMs(), "-")
		return err
	})
}
