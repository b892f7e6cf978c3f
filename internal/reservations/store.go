// Package reservations reserves units of keys in Redis: they count as used until somebody commits or cancels them, or
// until they expire. A slot in flight is a reservation too: of a window that counts nothing else. So are units that a
// process or a client holds to answer from memory. Package counters has the counts themselves.
//
// Begin with Store.Reserve, then read settle.go. lua/operations/reserve.lua describes the records in Redis. The tests
// are in package counters, because they compare both packages with one recount.
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

	// Foreign is called with the name of a key in Redis that had the reservations of a user key, and is of another
	// type now. Sweep forgets these reservations. nil: nobody is told.
	Foreign func(name string)
}

// New returns the Store of a counter.
func New(c *counters.Redis) *Store {
	return &Store{counter: c, redis: c.Library().Client(), lua: c.Library(), keys: c.Keys()}
}

// ID returns the id of a reservation of these keys, made from a word (lower-case
// letters and digits). It has the keys' partitions, so that any process finds it.
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

// partitionsOf returns the partitions in an id, nil if it is not an id.
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

// Shards returns the partitions in an id, grouped by shard. It is empty if it is
// not an id.
func (s *Store) Shards(id string) [][]int {
	return eventlog.Shards(s.redis, s.partitionsOf(id))
}

func (s *Store) rememberMs() int64 {
	return cmp.Or(s.counter.Remember, stream.DefaultRetention).Milliseconds()
}

// argsOf returns the arguments with the keys of requests and their costs.
func (s *Store) argsOf(id string, requests []counters.Request) lua.ReservationArgs {
	args := lua.ReservationArgs{Now: s.counter.Clock(), ID: id}
	for _, a := range requests {
		s.addKey(&args, a.Plan, a.Key, a.Cost)
	}
	return args
}

// addKey adds a key to the arguments. Without a plan it has no meters.
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

// keysOf reads which keys a reservation has in some partitions, and its ttl. There are no keys if the id is
// unknown.
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
		for n := 6; n+1 < len(lines); n += 2 { // reserve.lua describes the lines
			if s.keys.Partition(lines[n+1]) == p { // otherwise it is foreign
				units, _ := strconv.ParseInt(strings.TrimRight(lines[n], "cfl"), 10, 64)
				keys = append(keys, SettledKey{Key: lines[n+1], Units: units})
			}
		}
	}
	return keys, ttl, nil
}
