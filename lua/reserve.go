package lua

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// ReservationPartition names the keys of one partition that reservations touch.
type ReservationPartition struct{ Levels, Due, Outbox, Reservations string }

// ReservationKey is one key of a reservation: its holds, its counters, and the units to
// reserve, or to charge.
type ReservationKey struct {
	Partition int // index into ReservationArgs.Partitions
	Holds     string
	Units     int64
	Frees     bool // its units are free when the reservation expires; else they are charged then
	Leased    bool // they are a process's own, which a reset leaves alone (lease-units.lua)
	Counters  []Counter
}

// ReservationArgs are the keys of a reservation, all of which one server holds.
type ReservationArgs struct {
	Now        Now
	ID         string // letters, digits, '-' and '.'
	Partitions []ReservationPartition
	Keys       []ReservationKey
}

// encode gives KEYS and ARGV behind the script's own arguments.
func (a *ReservationArgs) encode(head ...any) (keys []string, args []any, algorithms []string) {
	for _, p := range a.Partitions {
		keys = append(keys, p.Levels, p.Due, p.Outbox, p.Reservations)
	}
	numbers := map[*Rule]int{} // rule → its number, from 1
	var rules, items []any
	for _, k := range a.Keys {
		policy := "c"
		switch {
		case k.Leased:
			policy = "l"
		case k.Frees:
			policy = "f"
		}
		keys = append(keys, k.Holds)
		items = append(items, k.Partition+1, k.Units, policy, len(k.Counters))
		for _, c := range k.Counters {
			if numbers[c.Rule] == 0 {
				numbers[c.Rule] = len(numbers) + 1
				rules = c.Rule.appendTo(rules)
				algorithms = c.Rule.addAlgorithms(algorithms)
			}
			keys, items = append(keys, c.Name), append(items, numbers[c.Rule])
		}
	}
	args = append([]any{a.Now.arg(), a.ID}, head...)
	args = append(args, len(a.Partitions), len(numbers))
	return keys, append(append(args, rules...), items...), algorithms
}

// ReserveState says what became of a reservation.
type ReserveState int64

// The states of a reservation that was asked for.
const (
	Denied        ReserveState = 0
	Reserved      ReserveState = 1
	StandsAlready ReserveState = 2  // the id was reserved before, by the same request
	SettledBefore ReserveState = -1 // the id was reserved before, and is settled
	OtherRequest  ReserveState = -2 // the id was reserved before, by another request
)

// ReserveReply is the answer to a request for a reservation: per key and counter where
// the key stands, in the order of the arguments.
type ReserveReply struct {
	State       ReserveState
	ExpiresMs   int64
	Transitions int64
	Counters    [][]CheckResult
}

// Reserve runs reserve.lua. It may be sent again with the same id and fingerprint (a word).
func Reserve(ctx context.Context, c redis.Scripter, a ReservationArgs, ttlMs int64, fingerprint string) (
	ReserveReply, error,
) {
	keys, args, algorithms := a.encode(ttlMs, "", fingerprint)
	want := 3
	for _, k := range a.Keys {
		for _, counter := range k.Counters {
			want += 2 + 3*len(counter.Rule.Windows) + counter.Rule.shadows()
		}
	}
	n, err := eval(ctx, c, "reserve", algorithms, keys, args, want)
	if err != nil {
		return ReserveReply{}, err
	}
	reply := ReserveReply{State: ReserveState(n[0]), ExpiresMs: n[1], Transitions: n[2]}
	n = n[3:]
	for _, k := range a.Keys {
		list := make([]CheckResult, len(k.Counters))
		for i, counter := range k.Counters {
			w, shadows := len(counter.Rule.Windows), counter.Rule.shadows()
			list[i] = CheckResult{NowMs: n[0], RetryMs: n[1], Windows: windowStates(n[2:], w)}
			n = n[2+3*w:]
			list[i].ShadowMs, n = n[:shadows:shadows], n[shadows:]
		}
		reply.Counters = append(reply.Counters, list)
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
	// Withdraw cancels and forgets the id.
	Withdraw SettleOp = "withdraw"
)

// SettleState says what became of that.
type SettleState int64

// The states of a reservation that was to be settled.
const (
	Unknown       SettleState = 0
	Settled       SettleState = 1
	DoneBefore    SettleState = 2
	WasCommitted  SettleState = -1 // or, of a commit, with another cost
	WasCancelled  SettleState = -2
	HasExpired    SettleState = -3
	NothingToDone SettleState = -4
)

// SettleReply is the answer: per key and counter where the key stands.
type SettleReply struct {
	State       SettleState
	ExpiresMs   int64
	SettledMs   int64
	Transitions int64
	Counters    [][]CheckResult
}

// Settle runs settle.lua. ms is for how long what is settled is remembered, and of a renewal for
// how long it stands from now; fingerprint is a word for the costs. It is safe to send again.
func Settle(ctx context.Context, c redis.Scripter, a ReservationArgs, op SettleOp, ms int64, fingerprint string) (
	SettleReply, error,
) {
	keys, args, algorithms := a.encode(string(op), ms, fingerprint)
	want := 4
	for _, k := range a.Keys {
		for _, counter := range k.Counters {
			want += 1 + 3*len(counter.Rule.Windows)
		}
	}
	n, err := eval(ctx, c, "settle", algorithms, keys, args, want)
	if err != nil {
		return SettleReply{}, err
	}
	reply := SettleReply{State: SettleState(n[0]), ExpiresMs: n[1], SettledMs: n[2], Transitions: n[3]}
	n = n[4:]
	for _, k := range a.Keys {
		got := results(n, k.Counters)
		for _, counter := range k.Counters {
			n = n[1+3*len(counter.Rule.Windows):]
		}
		reply.Counters = append(reply.Counters, got)
	}
	return reply, nil
}
