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

// ruleChanges are the rules that were in force since all keys were last looked at. Rules that are changed
// and changed back in the meantime leave their traces too: a key that others released stands at no level, and is
// over its limit again.
type ruleChanges struct {
	mu      sync.Mutex
	scanned *windows.Rules   // under which all keys stand as they should
	since   []*windows.Rules // in force after these
	some    chan struct{}    // there are some
}

func (c *ruleChanges) add(rules *windows.Rules) {
	c.mu.Lock()
	c.since = append(c.since, rules)
	c.mu.Unlock()
	signal(c.some)
}

// take gives what tells of a key whether other rules were evaluated for it at any time since the last done, and
// what is to be called when all such keys were looked at. changed is nil where the rules were the same.
func (c *ruleChanges) take() (changed func(key string) bool, done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.since)
	var any []func(key string) bool
	for _, rules := range c.since {
		if one := rules.Changed(c.scanned); one != nil {
			any = append(any, one)
		}
	}
	if any != nil {
		changed = func(key string) bool {
			return slices.ContainsFunc(any, func(one func(string) bool) bool { return one(key) })
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

// rescan looks, after a change of the rules, at each key on which another rule decides
// now: one that stands at no level may be over its new limit. It walks all
// counters, in the background, and rests as long as each step took.
func (s *sweeper) rescan(ctx context.Context) {
	var wait backoff
	for {
		select {
		case <-s.changes.some:
		case <-ctx.Done():
			return
		}
		if s.config.onRescan != nil {
			s.config.onRescan()
		}
		changed, done := s.changes.take()
		if changed != nil {
			itself := func(key string) string { return key }
			err := s.sweepWhere(ctx, changed, itself)
			if ctx.Err() != nil {
				return
			}
			s.outages.note("looking for keys over their new limits", 0, err)
			if err != nil {
				signal(s.changes.some)
				wait.wait(ctx)
				continue
			}
		}
		wait.reset()
		done()
	}
}

// sweepWhere sweeps the keys with a counter for which changed is true: of each the field that `field` gives.
func (s *sweeper) sweepWhere(ctx context.Context, changed func(key string) bool, field func(key string) string) error {
	var mu sync.Mutex // masters of a Cluster are walked at once
	waiting := map[int][]string{}
	sweep := func(p int) error {
		keys := waiting[p]
		waiting[p] = nil
		began := time.Now()
		if err := s.look(ctx, p, keys); err != nil && !s.isQuarantined(ctx, p, err) {
			return err
		}
		pause.For(ctx, time.Since(began))
		return nil
	}
	err := s.counter.EachKey(ctx, s.rules(), func(p int, key string) error {
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
