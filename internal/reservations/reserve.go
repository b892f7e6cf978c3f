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
	Denied        ReserveState = 0
	Reserved      ReserveState = 1
	StandsAlready ReserveState = 2  // the id was reserved before, by the same request
	SettledBefore ReserveState = -1 // the id was reserved before, and is settled
	OtherRequest  ReserveState = -2 // the id was reserved before, by another request
)

// Reservation is the outcome of a request for a reservation.
type Reservation struct {
	counters.Verdict // in the order of the requests
	State            ReserveState
	// ExpiresMs is when it expires, by Redis's clock.
	ExpiresMs int64
}

// Reserve reserves the costs of the requests for ttl, all or none, under an id from ID.
// All keys are in one shard; package check reserves in several shards. The fingerprint is a word for
// the request. The same id may be sent again with the same fingerprint, and nothing is reserved twice.
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
			Allowed: state == Reserved || state == StandsAlready, Transitions: transitions}}
		return nil
	})
	return out, err
}

// Withdraw takes back what Reserve has reserved of keys of one shard, and removes the id there, if
// another shard denied the rest of the request.
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
