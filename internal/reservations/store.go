// Package reservations reserves units of keys in Redis: they count as used until somebody commits or cancels them, or
// until they expire. A slot in flight is a reservation of a window that counts nothing else. Units that a process or a
// client leases, to answer from memory, are one too (lease.go). Package counters has the counts themselves.
//
// Begin with Store.Reserve, then settle.go. lua/features/holds.lua has the records in Redis.
package reservations

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// Store has the reservations of a counter's keys. It is safe for concurrent use.
type Store struct {
	counter *counters.Redis
	redis   redis.UniversalClient
	lua     *lua.Server
	keys    *stream.Keys
}

// New makes the Store of a counter.
func New(c *counters.Redis) *Store {
	return &Store{counter: c, redis: c.Library().Client(), lua: c.Library(), keys: c.Keys()}
}

// ID makes the id of a reservation of these keys out of a word (letters and
// digits): it names their partitions, so that any process finds it.
func (s *Store) ID(word string, requests []counters.Request) string {
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
func (s *Store) partitionsOf(id string) []int {
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

// Shards gives the partitions that an id names, those of one shard together; none
// where it is no id.
func (s *Store) Shards(id string) [][]int {
	return eventlog.Shards(s.redis, s.partitionsOf(id))
}

func (s *Store) rememberMs() int64 {
	return cmp.Or(s.counter.Remember, stream.DefaultRetention).Milliseconds()
}

// argsOf names the keys of requests, with what their cost is.
func (s *Store) argsOf(id string, requests []counters.Request) lua.ReservationArgs {
	args := lua.ReservationArgs{Now: s.counter.Clock(), ID: id}
	for _, a := range requests {
		s.addKey(&args, a.Plan, a.Key, a.Cost)
	}
	return args
}

// addKey puts a key into the arguments; without a plan it has no meters.
func (s *Store) addKey(args *lua.ReservationArgs, plan *windows.Plan, key string, units int64) {
	p := s.keys.Partition(key)
	names := s.partition(p)
	at := slices.Index(args.Partitions, names)
	if at < 0 {
		at = len(args.Partitions)
		args.Partitions = append(args.Partitions, names)
	}
	k := lua.ReservationKey{Partition: at, Holds: s.keys.Holds(p, key), Units: units}
	if plan != nil {
		own := s.counter.Key(plan, key)
		k.Meters, k.Plan = own.Meters, own.Plan
		k.Frees = plan.Live != nil && plan.Live.OnExpire == windows.OnExpireFree
	}
	args.Keys = append(args.Keys, k)
}

func (s *Store) partition(p int) lua.ReservationPartition {
	return lua.ReservationPartition{Levels: s.keys.Levels(p), Due: s.keys.Due(p), Outbox: s.keys.Outbox(p),
		Reservations: s.keys.Reservations(p)}
}

// keysOf reads which keys a reservation has in some partitions, none where nobody knows its id,
// and its ttl.
func (s *Store) keysOf(ctx context.Context, id string, parts []int) (keys []SettledKey, ttl time.Duration, err error) {
	pipe := s.redis.Pipeline()
	records := make([]*redis.StringCmd, len(parts))
	for i, p := range parts {
		records[i] = pipe.HGet(ctx, s.keys.Reservations(p), id)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, 0, fmt.Errorf("reading the reservation: %w", err)
	}
	for i, p := range parts {
		lines := strings.Split(records[i].Val(), "\n")
		if len(lines) > 2 {
			ms, _ := strconv.ParseInt(lines[2], 10, 64)
			ttl = time.Duration(ms) * time.Millisecond
		}
		for n := 6; n+1 < len(lines); n += 2 { // reserve.lua says what the lines are
			if s.keys.Partition(lines[n+1]) == p { // else it is foreign
				units, _ := strconv.ParseInt(strings.TrimRight(lines[n], "cfl"), 10, 64)
				keys = append(keys, SettledKey{Key: lines[n+1], Units: units})
			}
		}
	}
	return keys, ttl, nil
}
