package reservations

import (
	"context"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// Reservation is the outcome of a request for a reservation.
type Reservation struct {
	counters.Verdict // in the order of the requests
	State            lua.ReserveState
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
		reply, err := s.lua.Reserve(ctx, s.argsOf(id, requests), ttl.Milliseconds(), fingerprint)
		if err != nil {
			return err
		}
		allowed := reply.State == lua.Reserved || reply.State == lua.StandsAlready
		out = Reservation{State: reply.State, ExpiresMs: reply.ExpiresMs}
		out.Verdict = counters.Verdict{Allowed: allowed, Atomic: true, Transitions: reply.Transitions,
			Items: make([]windows.KeyState, len(requests))}
		for i, a := range requests {
			out.Items[i] = a.Plan.State(reply.Keys[i])
		}
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
		_, err := s.lua.Settle(ctx, s.argsOf(id, free), lua.Withdraw, s.rememberMs(), "-")
		return err
	})
}
