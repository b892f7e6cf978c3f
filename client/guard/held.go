package guard

import (
	"iter"
	"slices"
	"sync"
	"unique"

	"github.com/streamcounter/streamcounter/api"
)

// decision is what the guard keeps of a transition of one rule and key. An ended decision is kept for a while, so
// that a late copy of an older message does not bring it back.
type decision struct {
	rule                                      unique.Handle[string] // one copy of each rule's name is kept
	reason                                    string                // of the operator who blocked the key
	limit, windowMs, used, version            int64
	atMs, sinceMs, untilMs, expiresMs, keepMs int64
	snapshot                                  uint64 // the last snapshot that it was in, or came after
	throttled, inFlight                       bool
}

func (d *decision) isInEffect(now int64) bool { return d.throttled && now < d.expiresMs }

func (d *decision) transition(key string) api.Transition {
	return api.Transition{
		Rule: d.rule.Value(), Key: key, State: api.StateThrottled, Level: api.LevelThrottled, Limit: d.limit,
		WindowMs: d.windowMs,
		Used:     d.used, Version: d.version, AtMs: d.atMs, SinceMs: d.sinceMs, UntilMs: d.untilMs,
		ExpiresMs: d.expiresMs, Reason: d.reason, InFlight: d.inFlight,
	}
}

// held has the decisions themselves, by key and rule. While rules change, a key can be throttled by several rules,
// because only the messages of one rule are in order. One goroutine writes; the locks are for the goroutines that
// read at the same time.
type held struct {
	shards [shards]shard
	size   int // decisions; only the writer uses it
}

// shards is a power of two. At a million keys, a shard holds 4,000, which are swept quickly.
const shards = 256

type shard struct {
	mu   sync.RWMutex
	keys map[string][]decision // key → one per rule, hardly ever two
}

func newHeld() *held {
	h := &held{}
	for i := range h.shards {
		h.shards[i].keys = map[string][]decision{}
	}
	return h
}

func (h *held) shard(hash uint64) *shard { return &h.shards[hash>>56&(shards-1)] }

// of returns the decision of a rule and key, nil if there is none. Only the writer may call it without the lock.
func (s *shard) of(key string, rule unique.Handle[string]) *decision {
	list := s.keys[key]
	for i := range list {
		if list[i].rule == rule {
			return &list[i]
		}
	}
	return nil
}

// longest returns the time at which the last throttling decision of the key expires, 0 if there is none.
func (s *shard) longest(key string) (untilMs int64) {
	for _, d := range s.keys[key] {
		if d.throttled {
			untilMs = max(untilMs, d.expiresMs)
		}
	}
	return untilMs
}

// put stores a decision. It replaces the decision of the same rule and key, if there is one.
func (h *held) put(s *shard, key string, d decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.of(key, d.rule); old != nil {
		*old = d
		return
	}
	s.keys[key] = append(s.keys[key], d)
	h.size++
}

// lookup returns the block of the key, if there is one, or else the decision that throttles it for longest.
func (s *shard) lookup(key string, now int64) (t api.Transition, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, d := range s.keys[key] {
		if !d.isInEffect(now) {
			continue
		}
		if next := d.transition(key); !ok || next.IsBlock() || !t.IsBlock() && next.UntilMs > t.UntilMs {
			t, ok = next, true
		}
	}
	return t, ok
}

// prune removes the decisions of a shard for which ended is true, and calls removed for each of them. Only the writer
// calls it.
func (h *held) prune(s *shard, ended func(*decision) bool, removed func(key string, d decision)) {
	for key, list := range s.keys { // the writer reads without the lock: nobody else writes
		var removable []decision
		for i := range list {
			if ended(&list[i]) {
				removable = append(removable, list[i])
			}
		}
		if len(removable) == 0 {
			continue
		}
		s.mu.Lock()
		left := slices.DeleteFunc(list, func(d decision) bool { return ended(&d) })
		if s.keys[key] = left; len(left) == 0 {
			delete(s.keys, key)
		}
		s.mu.Unlock()
		h.size -= len(removable)
		for _, d := range removable {
			removed(key, d)
		}
	}
}

// all lists the decisions that are in effect now, shard by shard.
func (h *held) all(now int64) iter.Seq[api.Transition] {
	return func(yield func(api.Transition) bool) {
		for i := range h.shards {
			s := &h.shards[i]
			s.mu.RLock()
			list := make([]api.Transition, 0, len(s.keys))
			for key, ds := range s.keys {
				for j := range ds {
					if ds[j].isInEffect(now) {
						list = append(list, ds[j].transition(key))
					}
				}
			}
			s.mu.RUnlock()
			for _, t := range list {
				if !yield(t) {
					return
				}
			}
		}
	}
}
