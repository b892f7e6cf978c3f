package counters

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// Reservation is what became of a request for one.
type Reservation struct {
	Verdict // in the order of the requests
	State   lua.ReserveState
	// ExpiresMs is until when it stands, by Redis's clock.
	ExpiresMs int64
}

// ReservationID makes the id of a reservation of these keys out of a word (letters and
// digits): it names their partitions, so that any process finds it.
func (s *Redis) ReservationID(word string, requests []Request) string {
	var parts []int
	for _, a := range requests {
		if p := s.keys.Partition(a.Key); !slices.Contains(parts, p) {
			parts = append(parts, p)
		}
	}
	slices.Sort(parts)
	for _, p := range parts {
		word += "-" + strconv.Itoa(p)
	}
	return word
}

// partitionsOf gives the partitions that an id names, nil where it is none.
func (s *Redis) partitionsOf(id string) []int {
	words := strings.Split(id, "-")
	if len(id) > 1024 || words[0] == "" || strings.Trim(words[0], "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
		return nil
	}
	var parts []int
	for _, word := range words[1:] {
		p, err := strconv.Atoi(word)
		if err != nil || p < 0 || p >= s.keys.Partitions || strconv.Itoa(p) != word || slices.Contains(parts, p) {
			return nil
		}
		parts = append(parts, p)
	}
	return parts
}

// ReservationShards gives the partitions that an id names, those of one shard together; none
// where it is no id.
func (s *Redis) ReservationShards(id string) [][]int {
	return eventlog.Shards(s.redis, s.partitionsOf(id))
}

// Reserve reserves the costs of the requests for ttl, all or none, under an id of ReservationID.
// All keys lie in one shard; package check reserves over several. The fingerprint is a word for
// the request: the same id may be sent again with the same one, and nothing is reserved twice.
func (s *Redis) Reserve(ctx context.Context, id string, ttl time.Duration, fingerprint string, requests []Request) (
	Reservation, error,
) {
	var out Reservation
	err := s.reserving(requests, func() error {
		reply, err := s.lua.Reserve(ctx, s.reservationArgs(id, requests), ttl.Milliseconds(), fingerprint)
		if err != nil {
			return err
		}
		allowed := reply.State == lua.Reserved || reply.State == lua.StandsAlready
		out = Reservation{State: reply.State, ExpiresMs: reply.ExpiresMs}
		out.Verdict = Verdict{Allowed: allowed, Atomic: true, Transitions: reply.Transitions,
			Items: make([]windows.KeyState, len(requests))}
		for i, a := range requests {
			out.Items[i] = a.Plan.State(reply.Keys[i])
		}
		return nil
	})
	return out, err
}

// Withdraw takes back what Reserve reserved of keys of one shard, and forgets the id there, as
// another shard denied the rest.
func (s *Redis) Withdraw(ctx context.Context, id string, requests []Request) error {
	free := slices.Clone(requests)
	for i := range free {
		free[i].Cost = 0
	}
	return s.reserving(free, func() error {
		_, err := s.lua.Settle(ctx, s.reservationArgs(id, free), lua.Withdraw, s.rememberMs(), "-")
		return err
	})
}

// reserving runs a script that reserves or settles what requests ask for, under their plans.
func (s *Redis) reserving(requests []Request, do func() error) error {
	for _, a := range requests {
		s.noticePlan(a.Plan)
	}
	return s.retryInPeriod(do)
}

func (s *Redis) rememberMs() int64 { return cmp.Or(s.Remember, stream.DefaultRetention).Milliseconds() }

// reservationArgs names the keys of requests, with what their cost is.
func (s *Redis) reservationArgs(id string, requests []Request) lua.ReservationArgs {
	args := lua.ReservationArgs{Now: s.now(), ID: id}
	for _, a := range requests {
		s.addKey(&args, a.Plan, a.Key, a.Cost)
	}
	return args
}

// addKey puts a key into the arguments; without a plan it has no meters.
func (s *Redis) addKey(args *lua.ReservationArgs, plan *windows.Plan, key string, units int64) {
	p := s.keys.Partition(key)
	names := s.reservationPartition(p)
	at := slices.Index(args.Partitions, names)
	if at < 0 {
		at = len(args.Partitions)
		args.Partitions = append(args.Partitions, names)
	}
	k := lua.ReservationKey{Partition: at, Holds: s.keys.Holds(p, key), Units: units}
	if plan != nil {
		own := s.key(plan, key)
		k.Meters, k.Plan = own.Meters, own.Plan
		k.Frees = plan.Live != nil && plan.Live.OnExpire == windows.OnExpireFree
	}
	args.Keys = append(args.Keys, k)
}

func (s *Redis) reservationPartition(p int) lua.ReservationPartition {
	return lua.ReservationPartition{Levels: s.keys.Levels(p), Due: s.keys.Due(p), Outbox: s.keys.Outbox(p),
		Reservations: s.keys.Reservations(p)}
}

// The ways to settle a reservation, and what becomes of it, as the scripts have them.
type (
	SettleOp     = lua.SettleOp
	SettleState  = lua.SettleState
	ReserveState = lua.ReserveState
)

// See package lua.
const (
	Commit = lua.Commit
	Cancel = lua.Cancel
	Renew  = lua.Renew

	Reserved      = lua.Reserved
	SettledBefore = lua.SettledBefore
	OtherRequest  = lua.OtherRequest

	Settled            = lua.Settled
	DoneBefore         = lua.DoneBefore
	UnknownReservation = lua.Unknown
	WasCommitted       = lua.WasCommitted
	WasCancelled       = lua.WasCancelled
	HasExpired         = lua.HasExpired
)
