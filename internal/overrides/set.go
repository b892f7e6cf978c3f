package overrides

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/streamcounter/streamcounter/api"
)

// shards is the number of maps. A change copies the map of one shard, so a look-up needs no lock.
const shards = 256

// set has overrides in memory. Look-ups are safe for concurrent use; changes are made one at a time.
type set struct {
	seed     maphash.Seed
	any      atomic.Bool // there is at least one override
	changes  atomic.Uint64
	keys     [shards]atomic.Pointer[map[string]*Override]
	patterns atomic.Pointer[[]*pattern] // the most specific first
	networks atomic.Pointer[networks]

	mu    sync.Mutex
	count int
}

func newSet() *set {
	s := &set{seed: maphash.MakeSeed()}
	for i := range s.keys {
		s.keys[i].Store(&map[string]*Override{})
	}
	s.patterns.Store(&[]*pattern{})
	s.networks.Store(&networks{tables: map[string]table{}})
	return s
}

func (s *set) shard(key string) *atomic.Pointer[map[string]*Override] {
	return &s.keys[maphash.String(s.seed, key)%shards]
}

// find returns the override that is in effect for a key: that of the key, otherwise that of the smallest network with
// its address, otherwise that of the most specific pattern that fits it.
func (s *set) find(key string) *Override {
	if !s.any.Load() {
		return nil
	}
	if o := (*s.shard(key).Load())[key]; o != nil && o.Stands() {
		return o
	}
	return s.fitting(key)
}

// fitting is find without the override of the key itself.
func (s *set) fitting(key string) *Override {
	if o := s.networks.Load().find(key); o != nil {
		return o
	}
	for _, g := range s.several() {
		if g.Fits(key) && g.override.Stands() {
			return g.override
		}
	}
	return nil
}

// get returns the override of a target, ended or not.
func (s *set) get(target string) *Override {
	if n, ok := networkOf(target); ok {
		return s.networks.Load().get(n)
	}
	if strings.HasPrefix(target, "\n") {
		for _, g := range s.several() {
			if g.override.target == target {
				return g.override
			}
		}
		return nil
	}
	return (*s.shard(target).Load())[target]
}

func (s *set) several() []*pattern { return *s.patterns.Load() }

// put sets the overrides of some targets; nil removes one. It copies each shard at most once.
func (s *set) put(changes map[string]*Override) {
	s.mu.Lock()
	defer s.mu.Unlock()
	byShard := map[*atomic.Pointer[map[string]*Override]][]string{}
	globs, changed := s.several(), false
	networks := map[api.Network]*Override{}
	for target, o := range changes {
		if n, ok := networkOf(target); ok {
			networks[n] = o
			continue
		}
		if !strings.HasPrefix(target, "\n") {
			at := s.shard(target)
			byShard[at] = append(byShard[at], target)
			continue
		}
		before := len(globs)
		globs = slices.DeleteFunc(slices.Clone(globs), func(g *pattern) bool { return g.override.target == target })
		s.count -= before - len(globs)
		if o != nil {
			globs = append(globs, newPattern(o))
			s.count++
		}
		changed = true
	}
	if changed {
		slices.SortFunc(globs, func(a, b *pattern) int {
			return cmp.Or(cmp.Compare(len(b.Literal), len(a.Literal)), cmp.Compare(len(b.Rest), len(a.Rest)),
				cmp.Compare(a.override.target, b.override.target))
		})
		s.patterns.Store(&globs)
	}
	if len(networks) > 0 {
		old := s.networks.Load()
		next := old.put(networks)
		s.count += next.count - old.count
		s.networks.Store(next)
	}
	for at, targets := range byShard {
		next := maps.Clone(*at.Load())
		before := len(next)
		for _, target := range targets {
			if o := changes[target]; o != nil {
				next[o.target] = o
			} else {
				delete(next, target)
			}
		}
		s.count += len(next) - before
		at.Store(&next)
	}
	s.any.Store(s.count > 0)
	s.changes.Add(1) // last: a caller that has read the old number looks up again
}

// each visits all overrides, including ended ones, in no order.
func (s *set) each(visit func(*Override)) {
	for i := range s.keys {
		for _, o := range *s.keys[i].Load() {
			visit(o)
		}
	}
	s.networks.Load().each(visit)
	for _, g := range s.several() {
		visit(g.override)
	}
}

// page returns the first n overrides, by target, for which `takes` is true.
func (s *set) page(n int, takes func(*Override) bool) []*Override {
	var list []*Override
	s.each(func(o *Override) {
		at, _ := slices.BinarySearchFunc(list, o.target, func(a *Override, target string) int {
			return strings.Compare(a.target, target)
		})
		if at < n && takes(o) {
			list = slices.Insert(list, at, o)
			list = list[:min(len(list), n)]
		}
	})
	return list
}
