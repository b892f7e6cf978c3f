package lua

import "context"

// LeaseArgs is the request of a process for units of a key, so that it can answer from memory.
type LeaseArgs struct {
	// ReservationArgs has one key. Its Units are the units that were used since the last call.
	ReservationArgs
	TTLMs int64
	Had   int64 // units that the lease has, 0 if it is new
	Keep  int64 // how many of them are not used
	Want  int64 // units that the process wants to have; 0 ends the lease
	Least int64 // units come in multiples of it; at least 1
}

// LeaseReply is the answer, with the state of the key.
type LeaseReply struct {
	// Stood is false if the lease had expired, and was charged. Then it has no units, and the used units
	// are not charged again.
	Stood       bool
	Units       int64
	Resets      int64 // the mark that a reset changes
	Transitions int64
	Key         CheckResult // RetryMs is the time until Least units are free, 0 if the lease has units
}

// LeaseUnits runs lease-units.lua. It is not safe to send again: if the outcome is unknown, the
// lease must no longer be used, and is charged when it expires.
func (s *Caller) LeaseUnits(ctx context.Context, a LeaseArgs) (LeaseReply, error) {
	a.Keys[0].Policy = "l" // a reset does not remove these units
	r := s.callReservation(ctx, "lease-units", a.ReservationArgs, a.TTLMs, a.Had, a.Keep, a.Want, a.Least)
	out := LeaseReply{Stood: r.integer() == 1, Units: r.integer(), Resets: r.integer(), Transitions: r.integer()}
	if plan := a.Keys[0].Plan; plan != nil {
		out.Key = r.answer(plan)
	}
	return out, r.end()
}
