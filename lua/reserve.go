package lua

import (
	"context"
)

// ReservationPartition names the keys of one partition that reservations touch.
type ReservationPartition struct{ Levels, Due, Outbox, Reservations string }

// ReservationKey is one key of a reservation: its holds, its meters and plan (nil if no rule counts it), and the
// units to reserve, or to charge.
type ReservationKey struct {
	Partition int // index into ReservationArgs.Partitions
	Holds     string
	Units     int64
	Frees     bool // its units are free when the reservation expires; otherwise they are charged then
	Leased    bool // its units are of a process's lease, which a reset does not remove (lease-units.lua)
	Meters    []string
	Plan      *Plan
}

// ReservationArgs are the keys of a reservation. All of them are on one server.
type ReservationArgs struct {
	Now        Now
	ID         string // letters, digits, '-' and '.'
	Partitions []ReservationPartition
	Keys       []ReservationKey
}

// encode returns KEYS and ARGV. head has the arguments that follow the time and the id.
func (a *ReservationArgs) encode(head ...any) (keys []string, args []any, algorithms []string) {
	for _, p := range a.Partitions {
		keys = append(keys, p.Levels, p.Due, p.Outbox, p.Reservations)
	}
	var plans planNumbers
	var items []any
	for _, k := range a.Keys {
		policy := "c"
		switch {
		case k.Leased:
			policy = "l"
		case k.Frees:
			policy = "f"
		}
		keys = append(append(keys, k.Holds), k.Meters...)
		items = append(items, k.Partition+1, k.Units, policy, plans.of(k.Plan))
	}
	args = append([]any{a.Now.arg(), a.ID}, head...)
	args = append(args, len(a.Partitions), len(plans.texts))
	return keys, append(append(args, plans.texts...), items...), plans.algorithms
}

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

// ReserveReply is the answer to a request for a reservation, with the states of the keys in the
// order of the arguments.
type ReserveReply struct {
	State       ReserveState
	ExpiresMs   int64
	Transitions int64
	Keys        []CheckResult // the result of a key without a plan is empty
}

// Reserve runs reserve.lua. It may be sent again with the same id and fingerprint (a word).
func (s *Server) Reserve(ctx context.Context, a ReservationArgs, ttlMs int64, fingerprint string) (
	ReserveReply, error,
) {
	keys, args, algorithms := a.encode(ttlMs, "", fingerprint)
	want := 3
	for _, k := range a.Keys {
		if k.Plan != nil {
			want += 2 + k.Plan.stateSize() + k.Plan.shadows()
		}
	}
	n, err := s.integers(ctx, "reserve", algorithms, keys, args, want)
	if err != nil {
		return ReserveReply{}, err
	}
	reply := ReserveReply{State: ReserveState(n[0]), ExpiresMs: n[1], Transitions: n[2]}
	reply.Keys, n = make([]CheckResult, len(a.Keys)), n[3:]
	for i, k := range a.Keys {
		if k.Plan != nil {
			reply.Keys[i], n = k.Plan.resultWithShadows(n)
		}
	}
	return reply, nil
}

// SettleOp is what settle.lua does with a reservation.
type SettleOp string

// The ways to end a reservation, and to renew it.
const (
	Commit SettleOp = "commit"
	Cancel SettleOp = "cancel"
	Renew  SettleOp = "renew"
	Expire SettleOp = "expire"
	// Withdraw cancels and removes the id.
	Withdraw SettleOp = "withdraw"
)

// SettleState is the outcome of a SettleOp.
type SettleState int64

// The states of a reservation that was to be settled.
const (
	Unknown       SettleState = 0
	Settled       SettleState = 1
	DoneBefore    SettleState = 2
	WasCommitted  SettleState = -1 // before; for a commit: with another cost
	WasCancelled  SettleState = -2
	HasExpired    SettleState = -3
	NothingToDone SettleState = -4
)

// SettleReply is the answer, with the states of the keys.
type SettleReply struct {
	State       SettleState
	ExpiresMs   int64
	SettledMs   int64
	Transitions int64
	Keys        []CheckResult // the result of a key without a plan is empty
}

// Settle runs settle.lua. ms is how long a settled reservation is remembered; for a renewal, it is
// how long from now the reservation expires. fingerprint is a word for the costs. It is safe to send again.
func (s *Server) Settle(ctx context.Context, a ReservationArgs, op SettleOp, ms int64, fingerprint string) (
	SettleReply, error,
) {
	keys, args, algorithms := a.encode(string(op), ms, fingerprint)
	want := 4
	for _, k := range a.Keys {
		if k.Plan != nil {
			want += 1 + k.Plan.stateSize()
		}
	}
	n, err := s.integers(ctx, "settle", algorithms, keys, args, want)
	if err != nil {
		return SettleReply{}, err
	}
	reply := SettleReply{State: SettleState(n[0]), ExpiresMs: n[1], SettledMs: n[2], Transitions: n[3]}
	reply.Keys, n = make([]CheckResult, len(a.Keys)), n[4:]
	for i, k := range a.Keys {
		if k.Plan != nil {
			reply.Keys[i], n = k.Plan.result(n, false)
		}
	}
	return reply, nil
}
