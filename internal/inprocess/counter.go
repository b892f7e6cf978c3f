package inprocess

import (
	"slices"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/api"
)

// Counter counts keys under rules. Check removes keys that are no longer used. It is
// safe for concurrent use.
type Counter struct {
	maxKeys int
	now     func() int64 // ms

	mu   sync.Mutex
	uses uint64 // how often a log was opened
	logs map[id]*log
}

type id struct{ rule, key string }

// Rule is a rule under which keys are counted.
type Rule struct {
	Name    string
	Windows []Window
	Shadow  bool // it denies nothing
}

// Share returns the rule with the limits for one of n processes: each limit divided by n and rounded down, so that
// all processes together do not exceed it, but at least one unit.
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
	// Period returns the period that contains a moment, in ms; nil if the window slides.
	Period func(ms int64) (from, to int64)
}

// at returns how many ms up to now the window counts, and how long it lasts. If it has periods,
// ends is when all units in it are free, otherwise 0.
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
	Cost int64 // 0 charges nothing and asks whether there is room for one unit
	Mode api.Mode
	// ChargesDenied: Cost counts even if the check is denied.
	ChargesDenied bool
}

// State is the state of a key under a rule.
type State struct {
	NowMs int64
	// Cost is the cost of the request, plus the costs of the requests before it for the same key and rule.
	Cost int64
	// RetryAfterMs is the time in ms until Cost is admitted if no more traffic comes: 0 now, -1 never.
	RetryAfterMs int64
	Windows      []api.WindowState // in the order of the rule
}

// New returns a Counter for up to maxKeys keys, where each key counts once per rule; 0: no bound. One more
// key replaces the key that was used longest ago among a few (docs/decisions/0021-client-fallback-policies).
// If the replaced key is used again, it starts from zero. now returns the time in ms since 1970; nil means this
// machine's clock.
func New(maxKeys int, now func() int64) *Counter {
	if now == nil {
		now = func() int64 { return time.Now().UnixMilli() }
	}
	return &Counter{maxKeys: maxKeys, now: now, logs: map[id]*log{}}
}

// Len returns how many keys it has.
func (c *Counter) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.logs)
}

// Add counts an event at its own time. An event that has left every window is not counted.
func (c *Counter) Add(rule Rule, key string, ms, count int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, now := c.open(rule, key, max(c.now(), ms))
	if ms > now-l.span {
		l.add(ms, count)
		c.keep(id{rule.Name, key}, l)
	}
}

// Check charges all requests if all are admitted, otherwise only those with ChargesDenied.
// A look is never charged. If several requests have the same key, their costs are added up.
// The states are those after the check, in the order of the requests.
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
		states[i].NowMs, states[i].Windows = clock, l.states(now, r.Rule.Windows)
	}
	return states, allowed
}

// Peek returns the state of a key.
func (c *Counter) Peek(rule Rule, key string) State {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, now := c.open(rule, key, c.now())
	return State{NowMs: l.clock, Windows: l.states(now, rule.Windows)}
}

// Reset removes a key under the rule of this name, and reports whether it was there.
func (c *Counter) Reset(rule, key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, held := c.logs[id{rule, key}]
	delete(c.logs, id{rule, key})
	return held
}

// open returns the key's log, trimmed, and the time, never below that of its newest entry.
// It does not store a new log; keep does.
func (c *Counter) open(rule Rule, key string, now int64) (*log, int64) {
	l := c.logs[id{rule.Name, key}]
	if l == nil {
		l = &log{}
	}
	c.uses++
	l.used, l.span, l.clock = c.uses, 1, now
	for _, w := range rule.Windows {
		l.span = max(l.span, w.Per.Milliseconds())
	}
	if newest, ok := l.newest(); ok {
		now = max(now, newest)
	}
	l.trim(now, l.span)
	return l, now
}

// candidates is how many keys keep compares to find the one that it removes.
const candidates = 5

// keep stores a key's log. If there is no room, it removes another key.
func (c *Counter) keep(key id, l *log) {
	if c.maxKeys > 0 && len(c.logs) >= c.maxKeys && c.logs[key] == nil {
		var oldest id
		used, looked := c.uses+1, 0
		for k, other := range c.logs { // in random order
			if other.used < used {
				oldest, used = k, other.used
			}
			if looked++; looked == candidates {
				break
			}
		}
		delete(c.logs, oldest)
	}
	c.logs[key] = l
}

// forget checks up to atMost keys, in the random order of a map, and removes those whose windows are empty. Callers
// give twice as many as they can add, so the map stays small.
func (c *Counter) forget(now int64, atMost int) {
	for k, l := range c.logs {
		if atMost--; atMost < 0 {
			return
		}
		if newest, ok := l.newest(); !ok || newest <= now-l.span {
			delete(c.logs, k)
		}
	}
}
