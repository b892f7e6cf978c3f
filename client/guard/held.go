package guard

import (
	"iter"
	"sync"

	"github.com/streamcounter/streamcounter/api"
)

// decision is what the guard keeps of a transition: that of one rule and key.
// One that has ended stays for a while, so that a late copy of an older message
// does not bring it back.
type decision struct {
	rule                                      string
	reason                                    string // of who blocked the key
	limit, windowMs, used, version            int64
	atMs, sinceMs, untilMs, expiresMs, keepMs int64
	snapshot                                  uint64 // the last snapshot that it was in, or came after
	throttled, inFlight                       bool
}

func (d *decision) standsAt(now int64) bool { return d.throttled && now < d.expiresMs }

func (d *decision) transition(key string) api.Transition {
	return api.Transition{
		Rule: d.rule, Key: key, State: api.StateThrottled, Level: api.LevelThrottled, Limit: d.limit,
		WindowMs: d.windowMs,
		Used:     d.used, Version: d.version, AtMs: d.atMs, SinceMs: d.sinceMs, UntilMs: d.untilMs,
		ExpiresMs: d.expiresMs, Reason: d.reason, InFlight: d.inFlight,
	}
}

// held has the decisions themselves, by key and rule: a key can be throttled by
// several rules while rules change, as each rule's messages are in order by
// themselves alone. One goroutine writes; locks are for those who look meanwhile.
type held struct {
	shards [shards]shard
	size   int // decisions, the writer's own
}

// shards: a power of two. At a million keys one holds 4,000: a moment's work.
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

// of gives the decision of a rule and key, nil where there is none. The writer's,
// or with the lock held.
func (s *shard) of(key, rule string) *decision {
	list := s.keys[key]
	for i := range list {
		if list[i].rule == rule {
			return &list[i]
		}
	}
	return nil
}

// longest is when the last decision of the key that stands expires, 0 where none does.
func (s *shard) longest(key string) (untilMs int64) {
	for _, d := range s.keys[key] {
		if d.throttled {
			untilMs = max(untilMs, d.expiresMs)
		}
	}
	return untilMs
}

// put keeps a decision, instead of that of the same rule and key if there is one.
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

// lookup gives what throttles the key for longest.
func (s *shard) lookup(key string, now int64) (t api.Transition, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, d := range s.keys[key] {
		if d.standsAt(now) && (!ok || d.untilMs > t.UntilMs) {
			t, ok = d.transition(key), true
		}
	}
	return t, ok
}

// prune takes decisions out of a shard that are to go, and tells each key of
// which one went. The writer's.
func (h *held) prune(s *shard, goes func(*decision) bool, gone func(key string, d decision)) {
	var lost []string
	for key, list := range s.keys { // the writer reads without the lock: nobody else writes
		for i := range list {
			if goes(&list[i]) {
				lost = append(lost, key)
				break
			}
		}
	}
	for _, key := range lost {
		list := s.keys[key]
		left := make([]decision, 0, len(list))
		var went []decision
		for i := range list {
			if goes(&list[i]) {
				went = append(went, list[i])
				continue
			}
			left = append(left, list[i])
		}
		s.mu.Lock()
		if s.keys[key] = left; len(left) == 0 {
			delete(s.keys, key)
		}
		s.mu.Unlock()
		h.size -= len(went)
		for _, d := range went {
			gone(key, d)
		}
	}
}

// all lists what stands now, shard by shard.
func (h *held) all(now int64) iter.Seq[api.Transition] {
	return func(yield func(api.Transition) bool) {
		for i := range h.shards {
			s := &h.shards[i]
			s.mu.RLock()
			list := make([]api.Transition, 0, len(s.keys))
			for key, ds := range s.keys {
				for j := range ds {
					if ds[j].standsAt(now) {
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
