// Package reservations reserves units of keys in Redis: they count as used until somebody commits or cancels them, or
// until they expire. A slot in flight is also a reservation; its window counts nothing else. A lease is a reservation
// of units that a process or a client spends from memory. Package counters has the counts themselves.
//
// Begin with Store.Reserve, then read settle.go. lua/operations/reserve.lua describes the records in Redis. The tests
// are in package counters, because they compare both packages with one recount.
package reservations

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// Store has the reservations of a counter's keys. It is safe for concurrent use.
type Store struct {
	counter *counters.Redis
	redis   redis.UniversalClient
	lua     *lua.Caller
	keys    *stream.Keys
}

// New returns the Store of a counter.
func New(c *counters.Redis) *Store {
	return &Store{counter: c, redis: c.Caller().Client(), lua: c.Caller(), keys: c.Keys()}
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
	return cmp.Or(s.counter.Retention, stream.DefaultRetention).Milliseconds()
}

// keysOf reads which keys a reservation has in some partitions, and its ttl. There are no keys if the id is
// unknown.
func (s *Store) keysOf(ctx context.Context, id string, parts []int) (keys []SettledKey, ttl time.Duration, err error) {
	hashes := make([]string, len(parts))
	for i, p := range parts {
		hashes[i] = s.keys.Reservations(p)
	}
	records, err := redisclient.HGetEach(ctx, s.redis, hashes, id)
	if err != nil {
		return nil, 0, fmt.Errorf("reading the reservation: %w", err)
	}
	for i, p := range parts {
		lines := strings.Split(records[i], "\n")
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
