package client

import (
	"fmt"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/inprocess"
)

// local counts in this process, exactly, at this instance's share of each limit.
// It knows of nothing that was spent elsewhere or before. A key takes at most 16
// bytes per unit of its tightest share.
type local struct {
	instances int
	now       func() int64

	mu   sync.Mutex
	logs *simplelru.LRU[localKey, *inprocess.Log]
}

type localKey struct{ rule, key string }

func newLocal(keys, instances int, now func() int64) *local {
	l := &local{instances: instances, now: now}
	l.logs, _ = simplelru.NewLRU[localKey, *inprocess.Log](keys, nil) // the error is for a size below 1
	return l
}

// check answers, all or nothing, what decide has begun. Keys without a rule are
// admitted: strictest has seen to those that must not be.
func (l *local) check(all *api.ChecksAnswer, rules []*Rule) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clock := l.now()
	spent := make(map[localKey]int64, len(rules)) // by this request, under each key
	for i, r := range rules {
		if r == nil {
			continue
		}
		c := &all.Checks[i]
		k := localKey{r.Name, c.Key}
		spent[k] += c.Cost
		log, now := l.open(k, r, clock)
		if wait := l.wait(log, now, r, spent[k]); wait != 0 {
			all.Allowed = false
			c.RetryAfterMs = max(wait, 0)
			all.RetryAfterMs = max(all.RetryAfterMs, c.RetryAfterMs)
			if wait < 0 {
				c.Note = fmt.Sprintf("the cost %d is above this instance's share, one of %d; %s", spent[k],
					l.instances, c.Note)
			}
		}
	}
	for i, r := range rules {
		c := &all.Checks[i]
		if c.Allowed = all.Allowed; r == nil {
			continue
		}
		k := localKey{r.Name, c.Key}
		log, now := l.open(k, r, clock)
		if all.Allowed {
			log.Add(now, c.Cost)
			l.logs.Add(k, log)
		}
		c.Source, c.Windows = api.SourceLocal, l.states(log, now, r)
	}
}

// open gives the key's log, trimmed, and the clock, never below its newest entry.
func (l *local) open(k localKey, r *Rule, now int64) (*inprocess.Log, int64) {
	log, ok := l.logs.Get(k)
	if !ok {
		return &inprocess.Log{}, now
	}
	if newest, ok := log.Newest(); ok {
		now = max(now, newest)
	}
	var span int64
	for _, limit := range r.Limits {
		span = max(span, limit.Per.Milliseconds())
	}
	log.Trim(now, span)
	return log, now
}

// wait is until all windows admit the cost, -1 where one never does.
func (l *local) wait(log *inprocess.Log, now int64, r *Rule, cost int64) (wait int64) {
	for _, limit := range r.Limits {
		w := log.Wait(now, limit.Per.Milliseconds(), share(limit.Units, l.instances), cost)
		if w < 0 {
			return w
		}
		wait = max(wait, w)
	}
	return wait
}

// states words where the key stands, in shares: what this instance may spend.
func (l *local) states(log *inprocess.Log, now int64, r *Rule) []api.WindowState {
	out := make([]api.WindowState, len(r.Limits))
	for i, limit := range r.Limits {
		n, per := share(limit.Units, l.instances), limit.Per.Milliseconds()
		used, more, reset := log.Use(now, per)
		out[i] = api.WindowState{Limit: n, WindowMs: per, Used: used, Remaining: max(0, n-used), ResetMs: reset,
			NextFreeMs: more}
	}
	return out
}
