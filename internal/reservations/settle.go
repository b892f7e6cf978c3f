package reservations

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// SettleOp is what is done with a reservation.
type SettleOp string

// The ways to end a reservation, and to renew it.
const (
	Commit SettleOp = "commit"
	Cancel SettleOp = "cancel"
	Renew  SettleOp = "renew"
	Expire SettleOp = "expire"
	// withdraw cancels and removes the id.
	withdraw SettleOp = "withdraw"
)

// SettleState is the outcome of a SettleOp.
type SettleState int64

// The states of a reservation that was to be settled.
const (
	Unknown      SettleState = 0
	Settled      SettleState = 1
	DoneBefore   SettleState = 2
	WasCommitted SettleState = -1 // before; for a commit: with another cost
	WasCancelled SettleState = -2
	HasExpired   SettleState = -3
)

// Settlement is the outcome of ending or renewing a reservation.
type Settlement struct {
	State                SettleState
	ExpiresMs, SettledMs int64
	Keys                 []SettledKey
}

// SettledKey is a key of a reservation, with its present state. Plan is nil, and State
// empty, if no rule matches it any more.
type SettledKey struct {
	Key   string
	Units int64 // reserved
	Plan  *windows.Plan
	State windows.KeyState
}

// Settle ends the part of a reservation in some partitions of one shard (see Shards), or
// renews it for ttl; 0 means the ttl that it had before. If ttl is longer than an in_flight window of
// its keys, the error wraps api.ErrBadRequest. For a commit, cost returns the charge of a key from its
// reserved units. Settle may be sent again: ending a reservation again in the same way, with the same costs, does
// nothing. The keys in without are left out.
func (s *Store) Settle(ctx context.Context, rules *windows.Rules, id string, parts []int, op SettleOp,
	ttl time.Duration, cost func(key string, units int64) int64, without ...string,
) (Settlement, error) {
	keys, before, err := s.keysOf(ctx, id, parts)
	keys = slices.DeleteFunc(keys, func(k SettledKey) bool { return slices.Contains(without, k.Key) })
	if err != nil || len(keys) == 0 && op != Expire {
		return Settlement{State: Unknown}, err
	}
	requests := make([]counters.Request, len(keys)) // each has the cost to charge
	for i, k := range keys {
		requests[i] = counters.Request{Plan: rules.Match(k.Key), Key: k.Key}
		if op == Commit && slices.ContainsFunc(requests[i].Plan.Rules(), (*windows.Rule).Charges) {
			requests[i].Cost = cost(k.Key, k.Units)
		}
	}
	ms, fingerprint := s.rememberMs(), "-"
	if op == Commit {
		fingerprint = fingerprintOf(keys, cost)
	}
	if op == Renew {
		if ms, err = renewFor(cmp.Or(ttl, before), requests); err != nil {
			return Settlement{}, err
		}
	}
	var out Settlement
	err = s.counter.UnderPlans(requests, func() error {
		c := s.callWith(requests, onExpiry)
		if len(keys) == 0 { // the script removes its due entry, if the id has no record by then
			c.partitions = parts
		}
		got, states, err := c.settle(ctx, id, op, ms, fingerprint)
		if err != nil {
			return err
		}
		for i, a := range requests {
			if keys[i].Plan = a.Plan; a.Plan != nil {
				keys[i].State = states[i]
			}
		}
		out, out.Keys = got, keys
		return nil
	})
	return out, err
}

// settle runs settle.lua. ms is how long a settled reservation is remembered; for a renewal, it is how long from now
// the reservation expires. fingerprint identifies the costs. It is safe to send again.
func (c *call) settle(ctx context.Context, id string, op SettleOp, ms int64, fingerprint string) (Settlement,
	[]windows.KeyState, error) {
	r := c.run(ctx, "settle", id, string(op), ms, fingerprint)
	out := Settlement{State: SettleState(r.Integer()), ExpiresMs: r.Integer(), SettledMs: r.Integer()}
	r.Integer() // how many transitions were written
	states, err := c.states(r, (*lua.Reply).State)
	return out, states, err
}

// fingerprintOf identifies the costs of keys. It does not depend on how the caller gave them: one for all keys, one
// for each, or none, which means the reserved units.
func fingerprintOf(keys []SettledKey, cost func(key string, units int64) int64) string {
	var lines []string
	for _, k := range keys {
		lines = append(lines, fmt.Sprintln(k.Key, cost(k.Key, k.Units)))
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return hex.EncodeToString(sum[:16])
}

// renewFor returns for how many ms a reservation of these keys is renewed.
func renewFor(ttl time.Duration, requests []counters.Request) (int64, error) {
	for _, a := range requests {
		for _, r := range a.Plan.Rules() {
			if most := r.InFlight(); most > 0 && ttl > most {
				return 0, fmt.Errorf("%w: ttl_ms is %d, expected at most %d, as the rule %q has in_flight: %s",
					api.ErrBadRequest, ttl.Milliseconds(), most.Milliseconds(), r.Name, windows.FormatDuration(most))
			}
		}
	}
	return max(1, ttl.Milliseconds()), nil
}

// Keys returns the keys that a reservation has in some partitions of one shard.
func (s *Store) Keys(ctx context.Context, id string, parts []int) ([]string, error) {
	list, _, err := s.keysOf(ctx, id, parts)
	keys := make([]string, len(list))
	for i, k := range list {
		keys[i] = k.Key
	}
	return keys, err
}

// Sweep settles the reservations among due records of partition p. The counter sweeps the other records. The results
// are those of counters.Redis.Sweep. If Redis refuses one reservation, Sweep goes on, and returns the refusal.
func (s *Store) Sweep(ctx context.Context, p int, rules *windows.Rules, fields []string) (transitions, corrupt int64,
	err error,
) {
	var rest []string
	var refused error
	for _, field := range fields {
		id, ok := counters.ReservationOf(field)
		if !ok {
			rest = append(rest, field)
			continue
		}
		if err := s.expire(ctx, p, rules, id); redisclient.IsRefusal(err) {
			if _, unreadable := s.Keys(ctx, id, []int{p}); unreadable != nil { // and so are all others
				return 0, 0, unreadable
			}
			refused = err
		} else if err != nil {
			return 0, 0, err
		}
	}
	transitions, corrupt, err = s.counter.Sweep(ctx, p, rules, rest)
	return transitions, corrupt, cmp.Or(err, refused)
}

// expire settles a reservation if it has expired. It leaves out keys of the reservation whose set of reservations
// (Keys.Holds) was replaced by a foreign key.
func (s *Store) expire(ctx context.Context, p int, rules *windows.Rules, id string) error {
	_, err := s.Settle(ctx, rules, id, []int{p}, Expire, 0, nil)
	if !redisclient.IsWrongType(err) {
		return err
	}
	keys, unreadable := s.Keys(ctx, id, []int{p})
	if unreadable != nil {
		return unreadable
	}
	var foreign []string
	for _, key := range keys {
		name := s.keys.Holds(p, key)
		if !redisclient.IsWrongType(s.redis.ZCard(ctx, name).Err()) {
			continue
		}
		foreign = append(foreign, key)
		s.lua.ReportCorrupt(name)
	}
	if len(foreign) == 0 {
		return err
	}
	_, err = s.Settle(ctx, rules, id, []int{p}, Expire, 0, nil, foreign...)
	return err
}
