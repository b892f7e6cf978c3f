package reservations

import (
	"context"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// Leased is the answer. If Units is 0, State.RetryAfter is the time until Least units are free.
type Leased struct {
	// Stood is false if the lease had expired, and was charged: it has no units.
	Stood  bool
	Units  int64
	Resets int64 // changes at each reset of a key of the partition; see Resets
	State  windows.KeyState
}

// RenewLease takes, renews or ends a lease, and charges its used units in the same step. It then lasts for ttl, by
// Redis's clock. Its ID is from Store.ID. plan is the present plan of the key; nil if it has none any more. Do not call
// it again: if the outcome is unknown, the lease must no longer be used, and is charged when it expires.
func (s *Store) RenewLease(ctx context.Context, plan *windows.Plan, ttl time.Duration, ask api.LeaseRequest) (
	out Leased, err error) {
	requests := []counters.Request{{Plan: plan, Key: ask.Key, Cost: ask.Used}}
	err = s.counter.UnderPlans(requests, func() error {
		args := lua.LeaseArgs{ReservationArgs: s.argsOf(ask.ID, requests), Had: ask.Had,
			TTLMs: ttl.Milliseconds(), Keep: ask.Keep, Want: ask.Want, Least: max(1, ask.Least)}
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
