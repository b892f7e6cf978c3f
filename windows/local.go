package windows

import (
	"context"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/internal/inprocess"
)

// Local counts in this process, exactly. It answers while Redis is away, and
// tests hold the scripts against it. It keeps only what some window can still
// see: a key that has gone quiet is forgotten in passing.
type Local struct {
	// MaxKeys bounds the keys it holds; 0: no bound. A further key takes the place
	// of any other, which then begins anew. Set it before the first use.
	MaxKeys int

	now func() int64 // ms

	mu   sync.Mutex
	keys map[localKey]*localLog
}

type localKey struct{ rule, key string }

type localLog struct {
	inprocess.Log
	span int64
}

// NewLocal counts by the clock given, in ms since 1970; nil means this machine's.
func NewLocal(now func() int64) *Local {
	if now == nil {
		now = func() int64 { return time.Now().UnixMilli() }
	}
	return &Local{now: now, keys: map[localKey]*localLog{}}
}

// Len is how many keys it holds.
func (l *Local) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.keys)
}

// Add counts an event at its own time, as folding does; one that has left every
// window of a rule counts nothing there.
func (l *Local) Add(plan *Plan, key string, ms, count int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range plan.Rules() {
		if log, now := l.open(r, key, max(l.now(), ms)); ms > now-log.span {
			log.Add(ms, count)
			l.keep(localKey{r.Name, key}, log)
		}
	}
}

// Check implements Counter.
func (l *Local) Check(_ context.Context, requests []Request) (Verdict, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clock := l.now()
	l.forget(clock, 2*len(requests))
	v := Verdict{Allowed: true, Atomic: true, Items: make([]KeyState, len(requests))}
	waits := make([][]time.Duration, len(requests)) // ask → rule of its plan → how long
	for i, a := range requests {
		for _, r := range a.Plan.Rules() {
			wait := l.wait(r, a, clock)
			waits[i] = append(waits[i], wait)
			v.Allowed = v.Allowed && (wait == 0 || r.Shadow)
		}
	}
	for i, a := range requests {
		for _, r := range a.Plan.Rules() {
			if log, now := l.open(r, a.Key, clock); v.Allowed && a.Cost > 0 {
				log.Add(now, a.Cost)
				l.keep(localKey{r.Name, a.Key}, log)
			}
		}
		v.Items[i] = l.state(a.Plan, a.Key, clock, waits[i])
	}
	return v, nil
}

// wait is how long until a rule admits what is asked; below 0: it never does.
func (l *Local) wait(r *Rule, a Request, clock int64) time.Duration {
	log, now := l.open(r, a.Key, clock)
	var longest time.Duration
	for _, w := range r.Windows {
		longest = longer(longest, log.Wait(now, w.Per.Milliseconds(), w.Limit, max(1, a.Cost)))
	}
	return longest
}

// Peek implements Counter.
func (l *Local) Peek(_ context.Context, plan *Plan, key string) (KeyState, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state(plan, key, l.now(), nil), nil
}

// Reset implements Counter.
func (l *Local) Reset(_ context.Context, plan *Plan, key string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	had := false
	for _, r := range plan.Rules() {
		had = had || l.keys[localKey{r.Name, key}] != nil
		delete(l.keys, localKey{r.Name, key})
	}
	return had, nil
}

// open gives the key's log, trimmed, and the clock, never below its newest entry.
func (l *Local) open(rule *Rule, key string, now int64) (*localLog, int64) {
	span := rule.Longest().Milliseconds()
	log := l.keys[localKey{rule.Name, key}]
	if log == nil {
		return &localLog{span: span}, now
	}
	log.span = max(span, 1)
	if newest, ok := log.Newest(); ok {
		now = max(now, newest)
	}
	log.Trim(now, span)
	return log, now
}

// keep holds a key's log, and makes room for it.
func (l *Local) keep(key localKey, log *localLog) {
	if l.keys[key] == nil && l.MaxKeys > 0 && len(l.keys) >= l.MaxKeys {
		for other := range l.keys { // a map gives them in no order
			delete(l.keys, other)
			break
		}
	}
	l.keys[key] = log
}

// forget looks at a few keys, as a map gives them in no order, and drops those
// that have gone quiet: twice as many as can be added, so the map stays small.
func (l *Local) forget(now int64, look int) {
	for k, log := range l.keys {
		if look--; look < 0 {
			return
		}
		if newest, ok := log.Newest(); !ok || newest <= now-log.span {
			delete(l.keys, k)
		}
	}
}

// state gives where a key stands under the rules of its plan. waits are their
// waits, nil where nothing was asked for.
func (l *Local) state(plan *Plan, key string, clock int64, waits []time.Duration) KeyState {
	var s KeyState
	for n, r := range plan.Rules() {
		log, now := l.open(r, key, clock)
		one := KeyState{NowMs: now, Windows: make([]WindowState, len(r.Windows))}
		for i, w := range r.Windows {
			used, more, reset := log.Use(now, w.Per.Milliseconds())
			one.Windows[i] = WindowState{Used: used, NextFree: time.Duration(more) * time.Millisecond,
				Reset: time.Duration(reset) * time.Millisecond}
		}
		if waits != nil {
			one.RetryAfter = waits[n]
		}
		s.NowMs = one.NowMs
		if r == plan.Live {
			s = one
			continue
		}
		s.Shadows = append(s.Shadows, one)
	}
	return s
}
