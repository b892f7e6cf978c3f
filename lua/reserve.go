package lua

import (
	"cmp"
	"context"
	"slices"
)

// ReservationPartition names the keys of one partition that reservations touch.
type ReservationPartition struct{ Levels, Due, Outbox, Reservations string }

// ReservationKey is one key of a reservation: its holds, its meters and plan (nil if no rule counts it), and the
// units to reserve, or to charge.
type ReservationKey struct {
	Partition int // index into ReservationArgs.Partitions
	Holds     string
	Units     int64
	Policy    string // what happens to its units when the reservation expires, as in holds.lua; default "c"
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

// callReservation runs an operation on reservations. head has the arguments that follow the time and the id.
func (s *Caller) callReservation(ctx context.Context, op string, a ReservationArgs, head ...any) reply {
	var keys []string
	for _, p := range a.Partitions {
		keys = append(keys, p.Levels, p.Due, p.Outbox, p.Reservations)
	}
	var plans []*Plan
	var items []any
	for _, k := range a.Keys {
		plan := 0 // its number in the list, from 1
		if k.Plan != nil {
			if plan = 1 + slices.Index(plans, k.Plan); plan == 0 {
				plans = append(plans, k.Plan)
				plan = len(plans)
			}
		}
		keys = append(append(keys, k.Holds), k.Meters...)
		items = append(items, k.Partition+1, k.Units, cmp.Or(k.Policy, "c"), plan)
	}
	args := append([]any{a.Now.arg(), a.ID}, head...)
	args = appendTexts(append(args, len(a.Partitions), len(plans)), plans)
	return s.call(ctx, op, plans, keys, append(args, items...))
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
func (s *Caller) Reserve(ctx context.Context, a ReservationArgs, ttlMs int64, fingerprint string) (
	ReserveReply, error,
) {
	r := s.callReservation(ctx, "reserve", a, ttlMs, "", fingerprint)
	out := ReserveReply{State: ReserveState(r.integer()), ExpiresMs: r.integer(), Transitions: r.integer(),
		Keys: make([]CheckResult, len(a.Keys))}
	for i, k := range a.Keys {
		if k.Plan != nil {
			out.Keys[i] = r.answerWithShadows(k.Plan)
		}
	}
	return out, r.end()
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
func (s *Caller) Settle(ctx context.Context, a ReservationArgs, op SettleOp, ms int64, fingerprint string) (
	SettleReply, error,
) {
	r := s.callReservation(ctx, "settle", a, string(op), ms, fingerprint)
	out := SettleReply{State: SettleState(r.integer()), ExpiresMs: r.integer(), SettledMs: r.integer(),
		Transitions: r.integer(), Keys: make([]CheckResult, len(a.Keys))}
	for i, k := range a.Keys {
		if k.Plan != nil {
			out.Keys[i] = r.state(k.Plan)
		}
	}
	return out, r.end()
}
