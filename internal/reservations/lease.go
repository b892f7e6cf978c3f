package reservations

import (
	"context"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// Lease is units of a key that are reserved in Redis, so that a process can answer from memory.
type Lease struct {
	ID    string // from Store.ID
	Key   string
	TTL   time.Duration // from each renewal on, by Redis's clock
	Units int64         // from the last reply, 0 if the lease is new
}

// Renewal is the request of a process for its lease.
type Renewal struct {
	Used  int64 // units that were used since the last renewal; they are charged
	Keep  int64 // units that are not used; the process may use them during the renewal
	Want  int64 // units that the process wants to have; 0 ends the lease
	Least int64 // units come in multiples of it; at least 1
}

// Leased is the answer. If Units is 0, State.RetryAfter is the time until Least units are free.
type Leased struct {
	// Stood is false if the lease had expired, and was charged: it has no units.
	Stood  bool
	Units  int64
	Resets int64 // changes at each reset of a key of the partition; see Resets
	State  windows.KeyState
}

// RenewLease takes, renews or ends a lease, and charges its used units in the same step. plan is the
// present plan of the key; nil if it has none any more. Do not call it again: if the outcome is unknown,
// the lease must no longer be used, and is charged when it expires.
func (s *Store) RenewLease(ctx context.Context, plan *windows.Plan, lease Lease, ask Renewal) (Leased, error) {
	requests := []counters.Request{{Plan: plan, Key: lease.Key, Cost: ask.Used}}
	var out Leased
	err := s.counter.UnderPlans(requests, func() error {
		args := lua.LeaseArgs{ReservationArgs: s.argsOf(lease.ID, requests), Had: lease.Units,
			TTLMs: lease.TTL.Milliseconds(), Keep: ask.Keep, Want: ask.Want, Least: max(1, ask.Least)}
		args.Keys[0].Leased = true
		reply, err := s.lua.LeaseUnits(ctx, args)
		if err != nil {
			return err
		}
		out = Leased{Stood: reply.Stood, Units: reply.Units, Resets: reply.Resets}
		if plan != nil {
			out.State = plan.State(reply.Key)
		}
		return nil
	})
	return out, err
}
