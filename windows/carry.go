package windows

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/lua"
)

// Where a rule passes from one exact algorithm to another, what its keys have spent is carried
// along: whoever touches a key first puts what the old counter holds into the new one
// (lua/carry.lua). This is looked for while an old counter can still count, after a change
// of the rules; later nothing is asked.

// overlap is how long processes may take to read changed rules, one after the other. For so
// long each touch of a key looks for an old counter, as a process with the old rules may
// still write one.
const overlap = 2 * time.Minute

// maxCarried is how many keys are remembered as carried.
const maxCarried = 100_000

// carriedKeys are counters that need not be looked at again.
type carriedKeys struct {
	mu    sync.Mutex
	since int64 // ms: of which change of the rules
	known map[string]struct{}
}

// planCarry says which part of a plan's counters takes over what other exact algorithms have counted.
type planCarry struct {
	form string    // of the part that takes over
	rule *lua.Rule // that part's
	from []string  // algorithms that the plan does not use; none where nothing is to be carried
}

func (p *Plan) setCarry() {
	var used []string
	for i := range p.counters {
		for j, part := range p.counters[i].fresh.parts {
			used = append(used, part.algorithm)
			if p.carry.rule == nil && lua.IsExact(part.algorithm) {
				p.carry.form, p.carry.rule = part.form, p.counters[i].fresh.part(j)
			}
		}
	}
	if p.carry.rule == nil {
		return
	}
	for _, a := range lua.Exact() {
		if !slices.Contains(used, a) {
			p.carry.from = append(p.carry.from, a)
		}
	}
}

// carryMs is for how long after a change of the rules an old counter may count: its window,
// the eighth that it is kept longer, and what processes take to read the rules.
func carryMs(spanMs int64) int64 { return spanMs + spanMs/8 + overlap.Milliseconds() }

// carryFor tells whether an old counter of the plan's keys can still count, and whether
// processes with the old rules may still write one.
func (s *Redis) carryFor(plan *Plan, now int64) (look, always bool) {
	if plan == nil || len(plan.carry.from) == 0 {
		return false, false
	}
	changed := s.changed.Load()
	return now < changed+carryMs(plan.carry.rule.SpanMs), now < changed+overlap.Milliseconds()
}

// carryFrom gives the algorithms whose counters of a plan's keys there may be.
func (s *Redis) carryFrom(plan *Plan) []string {
	known := s.logs.Load()
	if known == nil {
		return plan.carry.from
	}
	var from []string
	for _, a := range plan.carry.from {
		if slices.Contains(*known, a) {
			from = append(from, a)
		}
	}
	return from
}

// carrying gathers keys that may have an old counter.
type carrying struct {
	keys  map[string]bool
	of    []*Plan
	rules []lua.CarryRule
	once  []string // counters that need not be looked at again
	// always: processes with the old rules may still count, and need markers.
	always bool
}

// add takes a key in, unless its old counters are known to be carried.
func (c *carrying) add(s *Redis, plan *Plan, key string, now int64) {
	look, always := s.carryFor(plan, now)
	if !look || len(s.carryFrom(plan)) == 0 {
		return
	}
	c.always = c.always || always
	p := s.keys.Partition(key)
	name := s.keys.Counter(p, plan.carry.form, key)
	if !always {
		if s.carried.has(name, s.changed.Load()) {
			return
		}
		c.once = append(c.once, name)
	}
	i := slices.Index(c.of, plan)
	if i < 0 {
		i = len(c.of)
		c.of, c.rules = append(c.of, plan), append(c.rules, lua.CarryRule{Rule: plan.carry.rule,
			From: s.carryFrom(plan)})
	}
	r := &c.rules[i]
	r.Counters = append(r.Counters, name)
	for _, a := range r.From {
		r.Counters = append(r.Counters, s.keys.Counter(p, lua.Form(a), key))
	}
}

// run carries what was gathered.
func (c *carrying) run(ctx context.Context, s *Redis) error {
	if len(c.rules) == 0 {
		return nil
	}
	var markerMs int64
	if c.always {
		markerMs = overlap.Milliseconds()
	}
	if _, err := lua.Carry(ctx, s.redis, s.now(), markerMs, c.rules); err != nil {
		return err
	}
	s.carried.add(c.once, s.changed.Load())
	return nil
}

// carry carries one key.
func (s *Redis) carry(ctx context.Context, plan *Plan, key string) error {
	return s.carryKeys(ctx, func(take func(plan *Plan, key string)) { take(plan, key) })
}

// carryCalls carries the keys of calls.
func (s *Redis) carryCalls(ctx context.Context, calls [][]Request) error {
	return s.carryKeys(ctx, func(take func(plan *Plan, key string)) {
		for _, call := range calls {
			for _, a := range call {
				take(a.Plan, a.Key)
			}
		}
	})
}

// carryEvents carries the keys of batches of events.
func (s *Redis) carryEvents(ctx context.Context, rules *Rules, batches []Batch) error {
	return s.carryKeys(ctx, func(take func(plan *Plan, key string)) {
		for _, b := range batches {
			for _, e := range b.Events {
				take(rules.Match(e.Key), e.Key)
			}
		}
	})
}

// carryKeys carries the keys that `each` names, all of one shard. Later than an old counter can
// count it does not ask for them.
func (s *Redis) carryKeys(ctx context.Context, each func(take func(plan *Plan, key string))) error {
	now := time.Now().UnixMilli()
	if now >= s.carryUntil.Load() {
		return nil
	}
	c := carrying{keys: map[string]bool{}}
	each(func(plan *Plan, key string) {
		if !c.keys[key] {
			c.keys[key] = true
			c.add(s, plan, key, now)
		}
	})
	return c.run(ctx, s)
}

// has tells whether a counter is known to need no look since the rules changed.
func (k *carriedKeys) has(counter string, changed int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, known := k.known[counter]
	return known && k.since == changed
}

func (k *carriedKeys) add(counters []string, changed int64) {
	if len(counters) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.since != changed || len(k.known)+len(counters) > maxCarried {
		k.since, k.known = changed, make(map[string]struct{}, len(counters))
	}
	for _, name := range counters {
		k.known[name] = struct{}{}
	}
}
