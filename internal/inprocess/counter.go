package inprocess

import (
	"slices"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/api"
)

// Counter counts keys under rules. A key that has gone quiet is forgotten in
// passing. It is safe for use by many goroutines.
type Counter struct {
	maxKeys int
	now     func() int64 // ms

	mu   sync.Mutex
	uses uint64 // how often a log was opened
	logs map[id]*log
}

type id struct{ rule, key string }

// Rule is what a key is counted under.
type Rule struct {
	Name    string
	Windows []Window
	Shadow  bool // it denies nothing
}

// Share is the rule with what one of n processes may spend: each limit divided by n and rounded down, so that
// all together stay within it, but at least one unit.
func (r Rule) Share(n int) Rule {
	if n > 1 {
		r.Windows = slices.Clone(r.Windows)
		for i, w := range r.Windows {
			r.Windows[i].Limit = max(1, w.Limit/int64(n))
		}
	}
	return r
}

// Window admits Limit units in any span of Per, or in each period.
type Window struct {
	Limit int64
	Per   time.Duration
	// Period gives the period that holds a moment, in ms; nil where the window slides.
	Period func(ms int64) (from, to int64)
}

// at gives for how many ms up to now the window counts, and for how long it lasts. If it has periods,
// ends is when all that it counts is free, else 0.
func (w Window) at(now int64) (ms, length, ends int64) {
	if w.Period == nil {
		return w.Per.Milliseconds(), w.Per.Milliseconds(), 0
	}
	from, to := w.Period(now)
	return now - from + 1, to - from, to
}

// Request is one key of a check under one rule.
type Request struct {
	Rule Rule
	Key  string
	Cost int64 // 0 charges nothing and asks for one unit
	Mode api.Mode
	// ChargesDenied: Cost counts also where the check is denied.
	ChargesDenied bool
}

// State is where a key stands under a rule.
type State struct {
	NowMs int64
	// Cost is that of the request and of those before it that ask the same key.
	Cost int64
	// RetryAfterMs is in how many ms Cost is admitted with no more traffic: 0 now, -1 never.
	RetryAfterMs int64
	Windows      []api.WindowState // in the order of the rule
}

// New counts up to maxKeys keys, each once per rule; 0: no bound. A further key
// takes the place of one that was used longest ago among a few (docs/decisions/0021-client-fallback-policies);
// if that comes back, it starts from zero. now is the clock in ms since 1970, nil this
// machine's.
func New(maxKeys int, now func() int64) *Counter {
	if now == nil {
		now = func() int64 { return time.Now().UnixMilli() }
	}
	return &Counter{maxKeys: maxKeys, now: now, logs: map[id]*log{}}
}

// Len is how many keys it holds.
func (c *Counter) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.logs)
}

// Add counts an event at its own time; one that has left every window counts nothing.
func (c *Counter) Add(rule Rule, key string, ms, count int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, now := c.open(rule, key, max(c.now(), ms))
	if ms > now-l.span {
		l.add(ms, count)
		c.keep(id{rule.Name, key}, l)
	}
}

// Check charges all requests if all are admitted, else those alone that say so; a look is
// never charged. Costs of a key that stands in several are added up. The states are as
// after the check, in the order of the requests.
func (c *Counter) Check(reqs []Request) (states []State, allowed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clock := c.now()
	c.forget(clock, 2*len(reqs))
	states, allowed = make([]State, len(reqs)), true
	for i, r := range reqs {
		s := &states[i]
		s.Cost = r.Cost
		for _, before := range reqs[:i] {
			if before.Key == r.Key && before.Rule.Name == r.Rule.Name {
				s.Cost += before.Cost
			}
		}
		l, now := c.open(r.Rule, r.Key, clock)
		s.RetryAfterMs = l.waitAll(now, r.Rule.Windows, max(1, s.Cost))
		allowed = allowed && (s.RetryAfterMs == 0 || r.Rule.Shadow)
	}
	for i, r := range reqs {
		l, now := c.open(r.Rule, r.Key, clock)
		if (allowed || r.ChargesDenied) && r.Mode != api.ModeLook && r.Cost > 0 {
			l.add(now, r.Cost)
			c.keep(id{r.Rule.Name, r.Key}, l)
			switch {
			case r.Mode == api.ModeCharge:
				if states[i].RetryAfterMs != 0 {
					states[i].RetryAfterMs = l.waitAll(now, r.Rule.Windows, 1)
				}
			case !allowed:
				states[i].RetryAfterMs = l.waitAll(now, r.Rule.Windows, states[i].Cost)
			}
		}
		states[i].NowMs, states[i].Windows = now, l.states(now, r.Rule.Windows)
	}
	return states, allowed
}

// Peek gives where a key stands.
func (c *Counter) Peek(rule Rule, key string) State {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, now := c.open(rule, key, c.now())
	return State{NowMs: now, Windows: l.states(now, rule.Windows)}
}

// Reset forgets a key under the rule of this name, and says whether it was held.
func (c *Counter) Reset(rule, key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, held := c.logs[id{rule, key}]
	delete(c.logs, id{rule, key})
	return held
}

// open gives the key's log, trimmed, and the clock, never below its newest entry. A
// log that is not held yet is held by keep.
func (c *Counter) open(rule Rule, key string, now int64) (*log, int64) {
	l := c.logs[id{rule.Name, key}]
	if l == nil {
		l = &log{}
	}
	c.uses++
	l.used, l.span = c.uses, 1
	for _, w := range rule.Windows {
		l.span = max(l.span, w.Per.Milliseconds())
	}
	if newest, ok := l.newest(); ok {
		now = max(now, newest)
	}
	l.trim(now, l.span)
	return l, now
}

// few is how many keys keep looks at for one that makes room.
const few = 5

// keep holds a key's log, and makes room for it.
func (c *Counter) keep(key id, l *log) {
	if c.maxKeys > 0 && len(c.logs) >= c.maxKeys && c.logs[key] == nil {
		var oldest id
		used, looked := c.uses+1, 0
		for k, other := range c.logs { // a map gives them in no order
			if other.used < used {
				oldest, used = k, other.used
			}
			if looked++; looked == few {
				break
			}
		}
		delete(c.logs, oldest)
	}
	c.logs[key] = l
}

// forget looks at some keys, as a map gives them in no order, and drops those
// that have gone quiet: twice as many as can be added, so the map stays small.
func (c *Counter) forget(now int64, look int) {
	for k, l := range c.logs {
		if look--; look < 0 {
			return
		}
		if newest, ok := l.newest(); !ok || newest <= now-l.span {
			delete(c.logs, k)
		}
	}
}
