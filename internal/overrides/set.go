package overrides

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/streamcounter/streamcounter/api"
)

// set has overrides in memory. Look-ups are safe for concurrent use and need no lock; changes are made one at a time.
type set struct {
	keys     sync.Map                   // key → *Override
	patterns atomic.Pointer[[]*pattern] // the most specific first
	networks atomic.Pointer[networks]
	count    atomic.Int64
	changes  atomic.Uint64
}

func newSet() *set {
	s := &set{}
	s.patterns.Store(&[]*pattern{})
	s.networks.Store(&networks{tables: map[string]table{}})
	return s
}

// find returns the override that is in effect for a key: that of the key, otherwise that of the smallest network with
// its address, otherwise that of the most specific pattern that fits it.
func (s *set) find(key string) *Override {
	if !s.any() {
		return nil
	}
	if o := s.ofKey(key); o != nil && o.InEffect() {
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
		if g.Fits(key) && g.override.InEffect() {
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
	return s.ofKey(target)
}

// ofKey returns the override of a single key, ended or not.
func (s *set) ofKey(key string) *Override {
	found, _ := s.keys.Load(key)
	o, _ := found.(*Override)
	return o
}

// any reports whether there is at least one override.
func (s *set) any() bool { return s.count.Load() > 0 }

func (s *set) several() []*pattern { return *s.patterns.Load() }

// put sets the overrides of some targets; nil removes one.
func (s *set) put(changes map[string]*Override) {
	globs, changed := s.several(), false
	networks := map[api.Network]*Override{}
	for target, o := range changes {
		if n, ok := networkOf(target); ok {
			networks[n] = o
			continue
		}
		if !strings.HasPrefix(target, "\n") {
			s.putKey(target, o)
			continue
		}
		before := len(globs)
		globs = slices.DeleteFunc(slices.Clone(globs), func(g *pattern) bool { return g.override.target == target })
		if o != nil {
			globs = append(globs, newPattern(o))
		}
		s.count.Add(int64(len(globs) - before))
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
		s.count.Add(int64(next.count - old.count))
		s.networks.Store(next)
	}
	s.changes.Add(1) // last: a caller that has read the old number looks up again
}

func (s *set) putKey(key string, o *Override) {
	had := s.ofKey(key) != nil
	switch {
	case o != nil:
		s.keys.Store(key, o)
		if !had {
			s.count.Add(1)
		}
	case had:
		s.keys.Delete(key)
		s.count.Add(-1)
	}
}

// each visits all overrides, including ended ones, in no order.
func (s *set) each(visit func(*Override)) {
	for _, o := range s.keys.Range {
		visit(o.(*Override))
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
