package windows

import (
	"context"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/windows/inprocess"
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
// window counts nothing.
func (l *Local) Add(rule *Rule, key string, ms, count int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	log, now := l.open(rule, key, max(l.now(), ms))
	if ms > now-log.span {
		log.Add(ms, count)
		l.keep(localKey{rule.Name, key}, log)
	}
}

// Check implements Counter.
func (l *Local) Check(_ context.Context, asks []Ask) (Verdict, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clock := l.now()
	l.forget(clock, 2*len(asks))
	v := Verdict{Allowed: true, Atomic: true, Items: make([]Standing, len(asks))}
	for i, a := range asks {
		log, now := l.open(a.Rule, a.Key, clock)
		var retry int64
		n := max(1, a.Cost)
		for _, w := range a.Rule.Windows {
			wait := log.Wait(now, w.Per.Milliseconds(), w.Limit, n)
			if wait < 0 {
				retry = wait
				break
			}
			retry = max(retry, wait)
		}
		v.Items[i].RetryAfter = time.Duration(retry) * time.Millisecond
		v.Allowed = v.Allowed && (retry == 0 || a.Rule.Shadow)
	}
	for i, a := range asks {
		log, now := l.open(a.Rule, a.Key, clock)
		if v.Allowed && a.Cost > 0 {
			log.Add(now, a.Cost)
			l.keep(localKey{a.Rule.Name, a.Key}, log)
		}
		retry := v.Items[i].RetryAfter
		v.Items[i] = standing(a.Rule, log, now)
		v.Items[i].RetryAfter = retry
	}
	return v, nil
}

// Peek implements Counter.
func (l *Local) Peek(_ context.Context, rule *Rule, key string) (Standing, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	log, now := l.open(rule, key, l.now())
	return standing(rule, log, now), nil
}

// Reset implements Counter.
func (l *Local) Reset(_ context.Context, rule *Rule, key string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, had := l.keys[localKey{rule.Name, key}]
	delete(l.keys, localKey{rule.Name, key})
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

func standing(r *Rule, log *localLog, now int64) Standing {
	s := Standing{NowMs: now, Windows: make([]Use, len(r.Windows))}
	for i, w := range r.Windows {
		used, more, reset := log.Use(now, w.Per.Milliseconds())
		s.Windows[i] = Use{Used: used, More: time.Duration(more) * time.Millisecond, Reset: time.Duration(reset) * time.Millisecond}
	}
	return s
}
