package reservations

import (
	"context"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// Lease is what a process has of a key to answer from memory: units that are reserved in Redis.
type Lease struct {
	ID    string // of ID
	Key   string
	TTL   time.Duration // from each renewal on, by Redis's clock
	Units int64         // as the last reply had them, 0 where it is new
}

// Renewal is what a process asks for its lease.
type Renewal struct {
	Used  int64 // units that were used since the last one; they are charged
	Keep  int64 // units that are not used, and may be used meanwhile
	Want  int64 // units that it is to have; 0 ends the lease
	Least int64 // units come in multiples of it; at least 1
}

// Leased is the answer. Where Units is 0, State.RetryAfter is when Least would be free.
type Leased struct {
	// Stood is false where the lease had expired, and was charged: it has no units.
	Stood  bool
	Units  int64
	Resets int64 // changes at each reset of a key of the partition; see Resets
	State  windows.KeyState
}

// RenewLease takes, renews or ends a lease in one step with the charge of what was used of it, under the
// plan that the key has now; nil where it has none any more. It may not be sent again: where the outcome is
// unknown, the lease must not be used any more, and is charged when it expires.
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
