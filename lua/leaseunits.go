package lua

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
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

// LeaseReply is the answer, and per counter where the key stands.
type LeaseReply struct {
	// Stood is false where the lease had expired, and was charged. Then it has no units, and what was used
	// is not charged again.
	Stood       bool
	Units       int64
	Resets      int64 // the mark that a reset changes
	Transitions int64
	Counters    []CheckResult // RetryMs is until Least units are free, 0 where the lease has some
}

// LeaseUnits runs lease-units.lua. It is not safe to send again: where the outcome is unknown, the
// lease is no more to be used, and is charged when it expires.
func LeaseUnits(ctx context.Context, c redis.Scripter, a LeaseArgs) (LeaseReply, error) {
	keys, args, algorithms := a.encode(a.TTLMs, a.Had, a.Keep, a.Want, a.Least)
	counters := a.Keys[0].Counters
	want := 4
	for _, counter := range counters {
		want += 2 + 3*len(counter.Rule.Windows)
	}
	n, err := eval(ctx, c, "lease-units", algorithms, keys, args, want)
	if err != nil {
		return LeaseReply{}, err
	}
	reply := LeaseReply{Stood: n[0] == 1, Units: n[1], Resets: n[2], Transitions: n[3],
		Counters: make([]CheckResult, len(counters))}
	n = n[4:]
	for i, counter := range counters {
		w := len(counter.Rule.Windows)
		reply.Counters[i] = CheckResult{NowMs: n[0], RetryMs: n[1], Windows: windowStates(n[2:], w)}
		n = n[2+3*w:]
	}
	return reply, nil
}

// HasQuickLease says whether an algorithm has a script for the common renewal.
func HasQuickLease(algorithm string) bool { return isFile("quick-lease-" + algorithm) }

// QuickLease runs the script of the common renewal: of a lease of one counter, without shadow windows. It is
// false where that was left untouched: then LeaseUnits is to be asked. It is no safer to send again.
func QuickLease(ctx context.Context, c redis.Scripter, a LeaseArgs, key string) (LeaseReply, bool, error) {
	p, k := a.Partitions[0], a.Keys[0]
	rule := k.Counters[0].Rule
	args := append(make([]any, 0, 11+3*len(rule.Windows)), a.Now.arg(), a.ID, a.TTLMs, a.Had, a.Keep, a.Want, a.Least,
		k.Units, key, rule.SpanMs, rule.Setting)
	for _, w := range rule.Windows {
		args = append(args, w.Ms, w.Limit, w.Lowest)
	}
	keys := []string{p.Levels, p.Due, p.Outbox, p.Reservations, k.Holds, k.Counters[0].Name}
	n, err := script("quick-lease-"+rule.Algorithm, nil).Run(ctx, c, keys, args...).Int64Slice()
	switch want := 4 + 3*len(rule.Windows); {
	case err != nil:
		return LeaseReply{}, false, fmt.Errorf("quick lease script: %w", err)
	case len(n) == 1 && n[0] == 0:
		return LeaseReply{}, false, nil
	case len(n) != want:
		return LeaseReply{}, false, fmt.Errorf("quick lease script: reply of %d integers, expected %d", len(n), want)
	}
	return LeaseReply{Stood: true, Units: n[1], Resets: n[2],
		Counters: []CheckResult{{NowMs: n[3], Windows: windowStates(n[4:], len(rule.Windows))}}}, true, nil
}
