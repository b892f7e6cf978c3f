package reservations

import (
	"context"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// Leased is the outcome of RenewLease. If Units is 0, State.RetryAfter is the time until Least units are free.
type Leased struct {
	// Valid is false if the lease had expired, and was charged: it has no units.
	Valid  bool
	Units  int64
	Resets int64 // changes at each reset of a key of the partition; see Resets
	State  windows.KeyState
}

// RenewLease takes, renews or ends a lease, and charges its used units in the same step. The lease then lasts for ttl,
// by Redis's clock. Its ID is from Store.ID. plan is the present plan of the key; nil if the key has none any more. If
// the outcome is unknown, do not call RenewLease again, and do not use the lease: it is charged when it expires.
func (s *Store) RenewLease(ctx context.Context, plan *windows.Plan, ttl time.Duration, ask api.LeaseRequest) (
	out Leased, err error) {
	requests := []counters.Request{{Plan: plan, Key: ask.Key, Cost: ask.Used}}
	err = s.counter.UnderPlans(requests, func() error {
		c := s.callWith(requests, func(counters.Request) string { return "l" }) // a reset does not remove these units
		r := c.run(ctx, "lease-units", ask.ID, ttl.Milliseconds(), ask.Had, ask.Keep, ask.Want, max(1, ask.Least))
		got := Leased{Valid: r.Integer() == 1, Units: r.Integer(), Resets: r.Integer()}
		r.Integer() // how many transitions were written
		states, err := c.states(r, (*lua.Reply).Answer)
		if err != nil {
			return err
		}
		if out = got; plan != nil {
			out.State = states[0]
		}
		return nil
	})
	return out, err
}
