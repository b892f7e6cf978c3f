package lua

import (
	"context"
)

// LeaseArgs are what a process asks for the units of a key that it answers from memory.
type LeaseArgs struct {
	// ReservationArgs has the one key; its Units are those that were used since the last time.
	ReservationArgs
	TTLMs int64
	Had   int64 // units that the lease has, 0 where it is new
	Keep  int64 // of them, those that are not used
	Want  int64 // units that it is to have; 0 ends it
	Least int64 // units come in multiples of it; at least 1
}

// LeaseReply is the answer, and where the key stands.
type LeaseReply struct {
	// Stood is false where the lease had expired, and was charged. Then it has no units, and what was used
	// is not charged again.
	Stood       bool
	Units       int64
	Resets      int64 // the mark that a reset changes
	Transitions int64
	Key         CheckResult // RetryMs is until Least units are free, 0 where the lease has some
}

// LeaseUnits runs lease-units.lua. It is not safe to send again: where the outcome is unknown, the
// lease is no more to be used, and is charged when it expires.
func (s *Server) LeaseUnits(ctx context.Context, a LeaseArgs) (LeaseReply, error) {
	keys, args, algorithms := a.encode(a.TTLMs, a.Had, a.Keep, a.Want, a.Least)
	plan := a.Keys[0].Plan
	want := 4
	if plan != nil {
		want += 2 + plan.stateSize()
	}
	n, err := s.integers(ctx, "lease-units", algorithms, keys, args, want)
	if err != nil {
		return LeaseReply{}, err
	}
	reply := LeaseReply{Stood: n[0] == 1, Units: n[1], Resets: n[2], Transitions: n[3]}
	if plan != nil {
		reply.Key, _ = plan.result(n[4:], true)
	}
	return reply, nil
}
