package consumers

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/windows"
)

// ruleChanges holds the rules that were in force since all keys were last examined. Rules that were changed and
// changed back in the meantime count too: a key that was released under them has no level, but is over its limit
// again.
type ruleChanges struct {
	mu      sync.Mutex
	scanned *windows.Rules   // the rules of the last complete walk over all keys, at first those of the start
	since   []*windows.Rules // the rules that came into force after that, in order
	some    chan struct{}    // gets a signal when there are changes
}

func (c *ruleChanges) add(rules *windows.Rules) {
	c.mu.Lock()
	c.since = append(c.since, rules)
	c.mu.Unlock()
	signal(c.some)
}

// take returns two functions. changed reports whether other rules applied to a key at any time since done was last
// called; it is nil if the rules were the same. Call done when all such keys have been examined.
func (c *ruleChanges) take() (changed func(key string) bool, done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.since)
	var tests []func(key string) bool
	for _, rules := range c.since {
		if one := rules.Changed(c.scanned); one != nil {
			tests = append(tests, one)
		}
	}
	if tests != nil {
		changed = func(key string) bool {
			return slices.ContainsFunc(tests, func(one func(string) bool) bool { return one(key) })
		}
	}
	return changed, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if n > 0 {
			c.scanned, c.since = c.since[n-1], c.since[n:]
		}
	}
}

// rescan examines, after a change of the rules, each key to which another rule applies now: a key without a level may
// be over its new limit. It walks all counters, in the background, and rests for as long as each step took.
func (s *sweeper) rescan(ctx context.Context) error {
	if s.onRescan != nil {
		s.onRescan()
	}
	changed, done := s.changes.take()
	if changed != nil {
		if err := s.sweepWhere(ctx, changed, func(key string) string { return key }); err != nil {
			return err
		}
	}
	done()
	return nil
}

// sweepWhere sweeps each key that has a counter and for which changed is true. It sweeps the record that `field`
// returns.
func (s *sweeper) sweepWhere(ctx context.Context, changed func(key string) bool, field func(key string) string) error {
	var mu sync.Mutex // the masters of a Cluster are walked concurrently
	waiting := map[int][]string{}
	sweep := func(p int) error {
		keys := waiting[p]
		waiting[p] = nil
		began := time.Now()
		if err := s.sweepAll(ctx, p, keys); err != nil {
			return err
		}
		pause.For(ctx, time.Since(began))
		return nil
	}
	err := s.Counter.EachKey(ctx, s.Rules(), func(p int, key string) error {
		if !changed(key) {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if waiting[p] = append(waiting[p], field(key)); len(waiting[p]) < sweepStep {
			return nil
		}
		return sweep(p)
	})
	for p := range waiting {
		if len(waiting[p]) > 0 {
			err = errors.Join(err, sweep(p))
		}
	}
	return err
}
