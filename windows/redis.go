package windows

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// Redis is the shared Counter, and what workers and sweepers change it with.
// Its client must not retry (MaxRetries: -1; on a Cluster stream.NewCluster): a
// check that is sent twice charges twice.
type Redis struct {
	redis redis.UniversalClient
	keys  *stream.Keys

	// Now stands in for Redis's clock in tests; nil means Redis's own.
	Now func() int64
	// Remember is how long the ids that producers give events are remembered;
	// default stream.DefaultRetention.
	Remember time.Duration

	changed atomic.Int64 // ms: when the rules became what they are, at the latest
	near    nearLevels
	carried carriedKeys
	// carryUntil is until when any key may have an old counter, in ms; 0 until RecordRules.
	carryUntil atomic.Int64
	// general leaves all to the general script, and answeredQuick is how many calls the quick
	// one answered; for tests.
	general       bool
	answeredQuick atomic.Int64
}

// NewRedis counts in the keys of k. Until RecordRules it treats the rules as new.
func NewRedis(c redis.UniversalClient, k *stream.Keys) *Redis {
	s := &Redis{redis: c, keys: k, near: nearLevels{seed: maphash.MakeSeed()}}
	s.changed.Store(time.Now().UnixMilli())
	return s
}

// RequireNoRetry refuses a client that would charge a check twice; see
// redisclient.RequireNoRetry. Who checks must ask it first, folds need not.
func (s *Redis) RequireNoRetry() error { return redisclient.RequireNoRetry(s.redis) }

// RecordRules compares the rules with those that counted here last, and notes since
// when they are what they are. Call it at the start and after each reload.
func (s *Redis) RecordRules(ctx context.Context, rules *Rules) error {
	h := sha256.New()
	for _, r := range rules.List() {
		fmt.Fprintf(h, "%q %s %d %t\n", r.Match, r.Algorithm, r.Longest().Milliseconds(), r.Shadow)
	}
	now := time.Now().UnixMilli()
	print := hex.EncodeToString(h.Sum(nil)[:8])
	known, err := s.redis.HGet(ctx, s.keys.Meta(), "rules").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("reading what rules were in use: %w", err)
	}
	before, since, _ := strings.Cut(known, "@")
	switch before {
	case print:
		s.setChanged(min(now, atoi(since)), rules)
		return nil
	case "": // nothing was ever counted here
		now = 0
	}
	s.setChanged(now, rules)
	if err := s.redis.HSet(ctx, s.keys.Meta(), "rules", fmt.Sprintf("%s@%d", print, now)).Err(); err != nil {
		return fmt.Errorf("noting what rules are in use: %w", err)
	}
	return nil
}

func (s *Redis) setChanged(ms int64, rules *Rules) {
	var span time.Duration
	for _, r := range rules.List() {
		span = max(span, r.Longest())
	}
	s.changed.Store(ms)
	s.carryUntil.Store(ms + carryMs(span.Milliseconds()))
}

// script gives a counter's rule as the scripts take it now.
func (s *Redis) script(c *planCounter) *lua.Rule {
	if time.Now().UnixMilli() < s.changed.Load()+c.everyMs {
		return c.fresh
	}
	return c.settled
}

func (s *Redis) now() lua.Now {
	if s.Now == nil {
		return 0
	}
	return lua.Now(s.Now())
}

// counters gives the counters of a key.
func (s *Redis) counters(plan *Plan, key string) []lua.Counter {
	p := s.keys.Partition(key)
	out := make([]lua.Counter, len(plan.counters))
	for i := range plan.counters {
		c := &plan.counters[i]
		out[i] = lua.Counter{Name: s.keys.Counter(p, c.form, key), Rule: s.script(c)}
	}
	return out
}

func (s *Redis) partition(p int) lua.CheckPartition {
	return lua.CheckPartition{Levels: s.keys.Levels(p), Due: s.keys.Due(p), Outbox: s.keys.Outbox(p)}
}

// Lanes is how many lanes there are: servers, or parts of one, that may answer or
// not independently of each other. A single server is one lane, and each
// partition of a Cluster is.
func (s *Redis) Lanes() int { return len(eventlog.Shards(s.redis, s.keys)) }

// Lane is the lane that answers for a key, from 0.
func (s *Redis) Lane(key string) int {
	if _, cluster := s.redis.(*redis.ClusterClient); !cluster {
		return 0
	}
	return s.keys.Partition(key)
}

// Check implements Counter. On a Cluster, where keys lie in several partitions,
// it looks first and then takes one partition after the other: a race can then
// charge some keys of a check that is denied in the end, and Atomic is false.
func (s *Redis) Check(ctx context.Context, requests []Request) (Verdict, error) {
	byLane := map[int][]int{} // lane → indexes of requests
	var order []int
	for i, a := range requests {
		lane := s.Lane(a.Key)
		if byLane[lane] == nil {
			order = append(order, lane)
		}
		byLane[lane] = append(byLane[lane], i)
	}
	if len(order) == 1 {
		return s.checkOne(ctx, requests)
	}
	v, err := s.look(ctx, requests)
	if err != nil || !v.Allowed {
		return v, err
	}
	for _, lane := range order {
		some := make([]Request, len(byLane[lane]))
		for j, i := range byLane[lane] {
			some[j] = requests[i]
		}
		got, err := s.checkOne(ctx, some)
		if err != nil {
			return v, err
		}
		v.Allowed = v.Allowed && got.Allowed
		v.Transitions += got.Transitions
		for j, i := range byLane[lane] {
			v.Items[i] = got.Items[j]
		}
		if !v.Allowed {
			break
		}
	}
	return v, nil
}

func (s *Redis) checkOne(ctx context.Context, requests []Request) (Verdict, error) {
	got, err := s.CheckMany(ctx, [][]Request{requests})
	if err != nil {
		return Verdict{}, err
	}
	return got[0], nil
}

// look answers a check without charging: what the answer for each key would be now.
func (s *Redis) look(ctx context.Context, requests []Request) (Verdict, error) {
	v := Verdict{Allowed: true, Items: make([]KeyState, len(requests))}
	for i, a := range requests {
		got, err := s.checkOne(ctx, []Request{{Plan: a.Plan, Key: a.Key}})
		if err != nil {
			return Verdict{}, err
		}
		st := got.Items[0]
		st.Want(a)
		v.Allowed = v.Allowed && st.RetryAfter == 0
		v.Items[i] = st
	}
	return v, nil
}

// Peek implements Counter.
func (s *Redis) Peek(ctx context.Context, plan *Plan, key string) (KeyState, error) {
	if err := s.carry(ctx, plan, key); err != nil {
		return KeyState{}, err
	}
	counters, err := lua.Peek(ctx, s.redis, s.now(), s.counters(plan, key))
	if err != nil {
		return KeyState{}, err
	}
	return plan.state(counters), nil
}

// Reset implements Counter. It forgets the key under every algorithm: what one
// that the rule had before has left would count again if the rule went back to it.
func (s *Redis) Reset(ctx context.Context, plan *Plan, key string) (bool, error) {
	p := s.keys.Partition(key)
	var counters, shadows []string
	for _, a := range Algorithms {
		counters = append(counters, s.keys.Counter(p, lua.Form(a), key))
	}
	for _, c := range s.counters(plan, key) {
		if !slices.Contains(counters, c.Name) {
			counters = append(counters, c.Name)
		}
	}
	for _, r := range plan.Shadows {
		shadows = append(shadows, r.Name)
	}
	had, _, err := lua.Reset(ctx, s.redis, s.partition(p), s.now(), counters, shadows)
	return had, err
}

// Next is when a partition is to be swept again.
type Next struct {
	NowMs int64 // by the clock of the server that holds it
	DueMs int64 // when the first of its keys must be looked at, by that clock
}

// NextDue gives, for each of these partitions, when its next key must be looked at. Partitions
// with none are left out, and those whose server does not answer; then the error
// says why, and the others are there all the same.
func (s *Redis) NextDue(ctx context.Context, parts []int) (map[int]Next, error) {
	pipe := s.redis.Pipeline()
	heads := make(map[int]*redis.ZSliceCmd, len(parts))
	for _, p := range parts {
		heads[p] = pipe.ZRangeWithScores(ctx, s.keys.Due(p), 0, 0)
	}
	_, err := pipe.Exec(ctx)
	clocks, clockErr := eventlog.Clocks(ctx, s.redis, s.keys)
	next := map[int]Next{}
	for p, head := range heads {
		now, ok := clocks[p]
		if s.Now != nil {
			now = s.Now()
		}
		if z := head.Val(); ok && head.Err() == nil && len(z) > 0 {
			next[p] = Next{now, int64(min(max(z[0].Score, 0), 1<<53))} // foreign data can be infinite
		}
	}
	if err = errors.Join(err, clockErr); err != nil {
		err = fmt.Errorf("reading what is due: %w", err)
	}
	return next, err
}

// Due gives up to n records of partition p that are to be looked at by `until`, the
// longest due first: each by its field, as Sweep takes it.
func (s *Redis) Due(ctx context.Context, p int, until, n int64) ([]string, error) {
	by := &redis.ZRangeBy{Min: "-inf", Max: strconv.FormatInt(until, 10), Count: n}
	keys, err := s.redis.ZRangeByScore(ctx, s.keys.Due(p), by).Result()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", s.keys.Due(p), err)
	}
	return keys, nil
}

// Levelled gives all records of partition p: what stands at a level.
func (s *Redis) Levelled(ctx context.Context, p int) ([]string, error) {
	keys, err := s.redis.ZRange(ctx, s.keys.Due(p), 0, -1).Result()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", s.keys.Due(p), err)
	}
	return keys, nil
}

// Sweep looks again at records of partition p, due or not. It gives how many
// transitions that wrote, and how many foreign records it removed.
func (s *Redis) Sweep(ctx context.Context, p int, rules *Rules, fields []string) (transitions, forgotten int64,
	err error) {
	if len(fields) == 0 {
		return 0, 0, nil
	}
	items := make([]lua.SweepItem, 0, len(fields))
	for _, field := range fields {
		items = s.sweepField(items, p, rules, field)
	}
	err = s.carryKeys(ctx, func(take func(plan *Plan, key string)) {
		for _, field := range fields {
			key, _, _ := strings.Cut(field, "\n")
			take(rules.Match(key), key)
		}
	})
	if err != nil {
		return 0, 0, err
	}
	return lua.Sweep(ctx, s.redis, s.keys.Levels(p), s.keys.Due(p), s.keys.Outbox(p), s.now(), items)
}

// sweepField adds what is to be done for one record: that of a shadow rule by itself,
// and with that of a key all rules that it has. A record passes to the other field
// where its rule has become a shadow or live, and ends where that is gone.
func (s *Redis) sweepField(items []lua.SweepItem, p int, rules *Rules, field string) []lua.SweepItem {
	key, name, shadow := strings.Cut(field, "\n")
	end := lua.SweepItem{Counter: s.keys.Counter(p, lua.Form(DefaultAlgorithm), field)}
	plan := rules.Match(key)
	item := func(i int, moved bool) lua.SweepItem {
		at := plan.places[i]
		return lua.SweepItem{Counter: s.keys.Counter(p, plan.counters[at.counter].form, key), Rule: at.alone,
			Moved: moved}
	}
	if shadow {
		i := slices.IndexFunc(plan.Rules(), func(r *Rule) bool { return r.Name == name })
		if i < 0 {
			return append(items, end)
		}
		return append(items, item(i, !plan.Rules()[i].Shadow))
	}
	for i, r := range plan.Rules() {
		if r.Shadow {
			items = append(items, item(i, true))
		}
	}
	if plan == nil || plan.Live == nil {
		return append(items, end)
	}
	return append(items, item(0, false))
}

// Throttled gives the keys that are over a limit now. A key may come twice if
// it changes meanwhile.
func (s *Redis) Throttled(ctx context.Context) iter.Seq2[api.Throttled, error] {
	return func(yield func(api.Throttled, error) bool) {
		for p := range s.keys.Partitions {
			it := s.redis.HScan(ctx, s.keys.Levels(p), 0, "", 500).Iterator()
			for it.Next(ctx) {
				key := it.Val()
				if !it.Next(ctx) {
					break
				}
				if t, ok := parseThrottle(key, it.Val()); ok && !yield(t, nil) {
					return
				}
			}
			if err := it.Err(); err != nil {
				yield(api.Throttled{}, fmt.Errorf("listing %s: %w", s.keys.Levels(p), err))
				return
			}
		}
	}
}
