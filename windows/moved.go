package windows

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/streamcounter/streamcounter/lua"
)

// Processes read changed rules one after another. One that has not read them yet may ask for a key that
// another has carried to the rule's next algorithm (carry.go). A marker in the place of the old counter
// makes the script end before it has written anything. Then the key is asked for again, under the same rule with
// the algorithm that the marker names.

// maxMoves is how often a script is asked again because keys were carried meanwhile.
const maxMoves = 8

// movedKeys remembers which counters were carried to another algorithm, until the rules are
// recorded anew. It may forget any: then a marker is met again.
type movedKeys struct {
	any atomic.Bool
	mu  sync.RWMutex
	to  map[string]string // counter → algorithm
}

func (m *movedKeys) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.any.Store(false)
	m.to = nil
}

// set remembers where counters were carried to; "": nowhere.
func (m *movedKeys) set(counters, to []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.to == nil || len(m.to)+len(counters) > maxCarried {
		m.to = map[string]string{}
	}
	for i, name := range counters {
		if to[i] == "" {
			delete(m.to, name)
		} else {
			m.to[name] = to[i]
		}
	}
	m.any.Store(len(m.to) > 0)
}

func (m *movedKeys) of(counter string) string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.to[counter]
}

// match is rules.Match for what is asked of Redis.
func (s *Redis) match(rules *Rules, key string) *Plan { return s.follow(rules.Match(key), key) }

// follow gives the plan under which a key is counted now: its own, but where it is known to
// have been carried, the same rules with that algorithm.
func (s *Redis) follow(plan *Plan, key string) *Plan {
	if plan == nil || !s.moved.any.Load() {
		return plan
	}
	p := s.keys.Partition(key)
	for range lua.Exact() {
		from, to := "", ""
		for part := range plan.parts() {
			if to = s.moved.of(s.keys.Counter(p, part.form, key)); to != "" {
				from = part.algorithm
				break
			}
		}
		if to == "" {
			return plan
		}
		plan = plan.with(from, to)
	}
	return plan
}

// followCalls does it for calls, without changing what it was given.
func (s *Redis) followCalls(calls [][]Request) [][]Request {
	if !s.moved.any.Load() {
		return calls
	}
	calls = slices.Clone(calls)
	for i, call := range calls {
		for j, a := range call {
			if plan := s.follow(a.Plan, a.Key); plan != a.Plan {
				if &calls[i][0] == &call[0] {
					calls[i] = slices.Clone(call)
				}
				calls[i][j].Plan = plan
			}
		}
	}
	return calls
}

// noteMoved reads where keys were carried to.
func (s *Redis) noteMoved(ctx context.Context, keys []string) error {
	names := make([]string, 0, len(keys)*len(lua.Exact()))
	for _, key := range keys {
		for _, a := range lua.Exact() {
			names = append(names, s.keys.Counter(s.keys.Partition(key), lua.Form(a), key))
		}
	}
	to, err := lua.CarriedTo(ctx, s.redis, names)
	if err != nil {
		return err
	}
	if known := s.logs.Load(); known != nil {
		for _, a := range to {
			if a != "" && !slices.Contains(*known, a) {
				s.logs.Store(nil) // rules have that algorithm since this process looked
			}
		}
	}
	s.moved.set(names, to)
	return nil
}

// following runs do, and again where keys of it turn out to have been carried to another algorithm,
// or a period of the calendar to be over.
func (s *Redis) following(ctx context.Context, keys func() []string, do func() error) error {
	for n := 0; ; n++ {
		err := do()
		switch {
		case n == maxMoves:
			return err
		case s.outOfPeriod(err):
			continue
		case !lua.IsCarried(err):
			return err
		}
		if err := s.noteMoved(ctx, keys()); err != nil {
			return err
		}
	}
}

// with gives the plan of the same rules where those of one algorithm have another.
func (p *Plan) with(from, to string) *Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := [2]string{from, to}
	if p.moved[at] == nil {
		change := func(r *Rule) *Rule {
			if r == nil || r.exact() != from {
				return r
			}
			return r.withExact(to)
		}
		var shadows []*Rule
		for _, r := range p.Shadows {
			shadows = append(shadows, change(r))
		}
		if p.moved == nil {
			p.moved = map[[2]string]*Plan{}
		}
		moved := newPlanThatKeeps(change(p.Live), shadows, p.kept)
		moved.written, moved.exempt = p.written, p.exempt // what an override says holds there too
		for i := range moved.counters {
			if slices.ContainsFunc(p.counters, func(c planCounter) bool { return c.settled == c.fresh }) {
				moved.counters[i].settled = moved.counters[i].fresh
			}
		}
		p.moved[at] = moved
	}
	return p.moved[at]
}
