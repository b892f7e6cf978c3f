package windows

import (
	"cmp"
	"container/heap"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/streamcounter/streamcounter/api"
)

// overrideShards: a change copies the map of one, a look-up takes no lock.
const overrideShards = 256

// overrideSet holds overrides in memory. Any goroutine may look; changes come one at a time.
type overrideSet struct {
	seed     maphash.Seed
	any      atomic.Bool // there is one at least
	changes  atomic.Uint64
	keys     [overrideShards]atomic.Pointer[map[string]*Override]
	patterns atomic.Pointer[[]*glob] // the most specific first
	networks atomic.Pointer[networks]

	mu    sync.Mutex
	count int
}

func newOverrideSet() *overrideSet { return &overrideSet{seed: maphash.MakeSeed()} }

func (s *overrideSet) shard(key string) *atomic.Pointer[map[string]*Override] {
	return &s.keys[maphash.String(s.seed, key)%overrideShards]
}

// find gives what is in effect for a key: its own, else that of the smallest network which has its address, else that
// of the most specific pattern which it fits.
func (s *overrideSet) find(key string) *Override {
	if !s.any.Load() {
		return nil
	}
	if m := s.shard(key).Load(); m != nil {
		if o := (*m)[key]; o != nil && o.stands() {
			return o
		}
	}
	return s.several(key)
}

// several is find without the key's own.
func (s *overrideSet) several(key string) *Override {
	if o := s.networks.Load().find(key); o != nil {
		return o
	}
	list := s.patterns.Load()
	if list == nil {
		return nil
	}
	for _, g := range *list {
		if g.Fits(key) && g.override.stands() {
			return g.override
		}
	}
	return nil
}

// get gives what stands under a target, ended or not.
func (s *overrideSet) get(target string) *Override {
	if n, ok := networkOf(target); ok {
		return s.networks.Load().get(n)
	}
	if strings.HasPrefix(target, "\n") {
		for _, g := range s.globs() {
			if g.override.target == target {
				return g.override
			}
		}
		return nil
	}
	if m := s.shard(target).Load(); m != nil {
		return (*m)[target]
	}
	return nil
}

func (s *overrideSet) globs() []*glob {
	if list := s.patterns.Load(); list != nil {
		return *list
	}
	return nil
}

// put sets the overrides of some targets, nil removes; it takes each shard once.
func (s *overrideSet) put(changes map[string]*Override) {
	s.mu.Lock()
	defer s.mu.Unlock()
	byShard := map[*atomic.Pointer[map[string]*Override]][]string{}
	globs, changed := s.globs(), false
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
		globs = slices.DeleteFunc(slices.Clone(globs), func(g *glob) bool { return g.override.target == target })
		s.count -= before - len(globs)
		if o != nil {
			globs = append(globs, newGlob(o))
			s.count++
		}
		changed = true
	}
	if changed {
		slices.SortFunc(globs, func(a, b *glob) int {
			return cmp.Or(cmp.Compare(len(b.literal), len(a.literal)), cmp.Compare(len(b.rest), len(a.rest)),
				cmp.Compare(a.override.target, b.override.target))
		})
		s.patterns.Store(&globs)
	}
	if len(networks) > 0 {
		old := s.networks.Load()
		next := old.put(networks)
		s.count += next.size() - old.size()
		s.networks.Store(next)
	}
	for at, targets := range byShard {
		next := map[string]*Override{}
		if old := at.Load(); old != nil {
			next = maps.Clone(*old)
		}
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
	s.changes.Add(1) // at last: who has read the number before looks again
}

// each visits all, ended ones among them, in no order.
func (s *overrideSet) each(visit func(*Override)) {
	for i := range s.keys {
		if m := s.keys[i].Load(); m != nil {
			for _, o := range *m {
				visit(o)
			}
		}
	}
	s.networks.Load().each(visit)
	for _, g := range s.globs() {
		visit(g.override)
	}
}

// page gives the first n of those for which `takes` is true, by target.
func (s *overrideSet) page(n int, takes func(*Override) bool) []*Override {
	h := &overrideHeap{}
	s.each(func(o *Override) {
		switch {
		case !takes(o):
		case h.Len() < n:
			heap.Push(h, o)
		case o.target < (*h)[0].target:
			(*h)[0] = o
			heap.Fix(h, 0)
		}
	})
	list := []*Override(*h)
	slices.SortFunc(list, func(a, b *Override) int { return strings.Compare(a.target, b.target) })
	return list
}

// overrideHeap has the last target on top.
type overrideHeap []*Override

func (h overrideHeap) Len() int           { return len(h) }
func (h overrideHeap) Less(i, j int) bool { return h[i].target > h[j].target }
func (h overrideHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *overrideHeap) Push(x any)        { *h = append(*h, x.(*Override)) }
func (h *overrideHeap) Pop() any {
	old := *h
	o := old[len(old)-1]
	*h = old[:len(old)-1]
	return o
}
