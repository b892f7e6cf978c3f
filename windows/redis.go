package windows

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// forms: algorithm → its word in the name of a counter.
var forms = map[string]string{
	"sliding-log": "log", "sliding-log-zset": "zset", "sliding-counter": "pair",
	"sliding-buckets": "buckets", "fixed-window": "fixed",
}

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

	compiled sync.Map     // *Rule → *scriptRule
	changed  atomic.Int64 // ms: when the rules became what they are, at the latest
}

// scriptRule is a rule as the scripts take it, freshly and once it has settled.
// A counter's expiry is renewed once per eighth of its longest window; in the
// first such eighth after a change of the rules it is renewed at each write, as
// a counter that was written under a shorter window would end too early.
type scriptRule struct {
	fresh, settled *lua.Rule
	everyMs        int64
}

// NewRedis counts in the keys of k. Until Learn it takes the rules for new.
func NewRedis(c redis.UniversalClient, k *stream.Keys) *Redis {
	s := &Redis{redis: c, keys: k}
	s.changed.Store(time.Now().UnixMilli())
	return s
}

// Learn holds the rules against those that counted here last, and notes since
// when they are what they are. Call it at the start and after each reload.
func (s *Redis) Learn(ctx context.Context, rules *Rules) error {
	s.forget(rules)
	h := sha256.New()
	for _, r := range rules.List() {
		fmt.Fprintf(h, "%q %s %d\n", r.Match, r.Algorithm, r.Longest().Milliseconds())
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
		s.changed.Store(min(now, atoi(since)))
		return nil
	case "": // nothing was ever counted here
		s.changed.Store(0)
		now = 0
	default:
		s.changed.Store(now)
	}
	if err := s.redis.HSet(ctx, s.keys.Meta(), "rules", fmt.Sprintf("%s@%d", print, now)).Err(); err != nil {
		return fmt.Errorf("noting what rules are in use: %w", err)
	}
	return nil
}

func (s *Redis) script(r *Rule) *lua.Rule {
	// Rules that callers bring are as many as callers like: what they compile to
	// is not kept, and is cheap without levels.
	if r.Unlevelled {
		return compile(r, 0)
	}
	v, ok := s.compiled.Load(r)
	if !ok {
		every := max(1, r.Longest().Milliseconds()/8)
		v, _ = s.compiled.LoadOrStore(r, &scriptRule{fresh: compile(r, 0), settled: compile(r, every), everyMs: every})
	}
	c := v.(*scriptRule)
	if time.Now().UnixMilli() < s.changed.Load()+c.everyMs {
		return c.fresh
	}
	return c.settled
}

// forget drops what is remembered of rules that are not in use any more.
func (s *Redis) forget(inUse *Rules) {
	keep := map[*Rule]bool{}
	for _, r := range inUse.List() {
		keep[r] = true
	}
	s.compiled.Range(func(k, _ any) bool {
		if !keep[k.(*Rule)] {
			s.compiled.Delete(k)
		}
		return true
	})
}

func (s *Redis) now() lua.Now {
	if s.Now == nil {
		return 0
	}
	return lua.Now(s.Now())
}

func (s *Redis) counter(r *Rule, key string) string {
	return s.keys.Counter(s.keys.Partition(key), forms[r.Algorithm], key)
}

// Lanes is how many lanes there are: servers, or parts of one, that may answer or
// not independently of each other. A single server is one lane, and each
// partition of a Cluster is.
func (s *Redis) Lanes() int { return len(stream.Lanes(s.redis, s.keys)) }

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
func (s *Redis) Check(ctx context.Context, asks []Ask) (Verdict, error) {
	byLane := map[int][]int{} // lane → indexes of asks
	var order []int
	for i, a := range asks {
		lane := s.Lane(a.Key)
		if byLane[lane] == nil {
			order = append(order, lane)
		}
		byLane[lane] = append(byLane[lane], i)
	}
	if len(order) == 1 {
		return s.checkOne(ctx, asks)
	}
	v, err := s.look(ctx, asks)
	if err != nil || !v.Allowed {
		return v, err
	}
	for _, lane := range order {
		some := make([]Ask, len(byLane[lane]))
		for j, i := range byLane[lane] {
			some[j] = asks[i]
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

func (s *Redis) checkOne(ctx context.Context, asks []Ask) (Verdict, error) {
	got, err := s.CheckMany(ctx, [][]Ask{asks})
	if err != nil {
		return Verdict{}, err
	}
	return got[0], nil
}

// look answers a check without charging: what each key would be told now.
func (s *Redis) look(ctx context.Context, asks []Ask) (Verdict, error) {
	v := Verdict{Allowed: true, Items: make([]Standing, len(asks))}
	for i, a := range asks {
		st, err := s.Peek(ctx, a.Rule, a.Key)
		if err != nil {
			return Verdict{}, err
		}
		for w, win := range a.Rule.Windows {
			if st.Windows[w].Used+a.Cost > win.Limit && !a.Rule.Shadow {
				v.Allowed = false
				// Without charging there is no exact answer for a cost; the first
				// units to come back are the earliest that it can be.
				st.RetryAfter = max(st.RetryAfter, st.Windows[w].More)
			}
		}
		v.Items[i] = st
	}
	return v, nil
}

// Peek implements Counter.
func (s *Redis) Peek(ctx context.Context, rule *Rule, key string) (Standing, error) {
	now, uses, err := lua.Peek(ctx, s.redis, s.counter(rule, key), s.now(), s.script(rule))
	if err != nil {
		return Standing{}, err
	}
	return standingOf(now, uses), nil
}

// Reset implements Counter. It forgets the key under every algorithm: what one
// that the rule had before has left would count again if the rule went back to it.
func (s *Redis) Reset(ctx context.Context, _ *Rule, key string) (bool, error) {
	p := s.keys.Partition(key)
	var counters []string
	for _, a := range Algorithms {
		counters = append(counters, s.keys.Counter(p, forms[a], key))
	}
	had, _, err := lua.Reset(ctx, s.redis, s.keys.Levels(p), s.keys.Due(p), s.keys.Outbox(p), s.now(), counters...)
	return had, err
}

// Fold counts a batch of partition p, each event at most once whoever sends it
// how often, and acknowledges it. It returns the IDs of events that no rule
// matches: those are the caller's to acknowledge.
func (s *Redis) Fold(ctx context.Context, p int, rules *Rules, events []Event) (Folded, []string, error) {
	grouped, unmatched := group(events, rules.Match, s.counter, s.script)
	if len(grouped) == 0 {
		return Folded{}, unmatched, nil
	}
	groups := 0
	for _, r := range grouped {
		groups += len(r.Groups)
	}
	reply, err := lua.Fold(ctx, s.redis, lua.FoldArgs{
		Events: s.keys.Events(p), Levels: s.keys.Levels(p), Due: s.keys.Due(p), Outbox: s.keys.Outbox(p), IDs: s.keys.IDs(p),
		Now: s.now(), Group: stream.Group, RememberMs: cmp.Or(s.Remember, stream.DefaultRetention).Milliseconds(), Rules: grouped,
	})
	if err != nil {
		return Folded{}, unmatched, err
	}
	return Folded{
		Folded: reply.Folded, Late: reply.Late, Gone: reply.Gone, Again: reply.Again, Transitions: reply.Transitions, Unreadable: reply.Unreadable,
		Merged: int64(len(events) - len(unmatched) - groups),
	}, unmatched, nil
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
	clocks, clockErr := stream.Clocks(ctx, s.redis, s.keys)
	next := map[int]Next{}
	for p, head := range heads {
		now, ok := clocks[p]
		if s.Now != nil {
			now = s.Now()
		}
		if z := head.Val(); ok && head.Err() == nil && len(z) > 0 {
			next[p] = Next{now, int64(min(max(z[0].Score, 0), 1<<53))} // a stranger may have put it to infinity
		}
	}
	if err = errors.Join(err, clockErr); err != nil {
		err = fmt.Errorf("reading what is due: %w", err)
	}
	return next, err
}

// Due gives up to n keys of partition p that are to be looked at by `until`, the
// longest due first.
func (s *Redis) Due(ctx context.Context, p int, until, n int64) ([]string, error) {
	by := &redis.ZRangeBy{Min: "-inf", Max: strconv.FormatInt(until, 10), Count: n}
	keys, err := s.redis.ZRangeByScore(ctx, s.keys.Due(p), by).Result()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", s.keys.Due(p), err)
	}
	return keys, nil
}

// Levelled gives all keys of partition p that stand at a level.
func (s *Redis) Levelled(ctx context.Context, p int) ([]string, error) {
	keys, err := s.redis.ZRange(ctx, s.keys.Due(p), 0, -1).Result()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", s.keys.Due(p), err)
	}
	return keys, nil
}

// Sweep looks again at keys of partition p, due or not. It gives how many
// transitions that wrote, and how many records it forgot that were none of ours.
func (s *Redis) Sweep(ctx context.Context, p int, rules *Rules, keys []string) (transitions, forgotten int64, err error) {
	if len(keys) == 0 {
		return 0, 0, nil
	}
	items := make([]lua.SweepItem, len(keys))
	for i, key := range keys {
		rule := rules.Match(key)
		if rule == nil {
			items[i] = lua.SweepItem{Counter: s.keys.Counter(p, forms[DefaultAlgorithm], key)}
			continue
		}
		items[i] = lua.SweepItem{Counter: s.keys.Counter(p, forms[rule.Algorithm], key), Rule: s.script(rule)}
	}
	return lua.Sweep(ctx, s.redis, s.keys.Levels(p), s.keys.Due(p), s.keys.Outbox(p), s.now(), items)
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

func standingOf(now int64, uses []lua.WindowUse) Standing {
	s := Standing{NowMs: now, Windows: make([]Use, len(uses))}
	for i, u := range uses {
		s.Windows[i].Used = u.Used
		if u.Used > 0 {
			s.Windows[i].More = time.Duration(u.BackMs-now) * time.Millisecond
			s.Windows[i].Reset = time.Duration(u.EmptyMs-now) * time.Millisecond
		}
	}
	return s
}
