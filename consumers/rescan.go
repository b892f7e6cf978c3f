package consumers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/internal/pause"
)

// rescan looks, after a change of the rules, at each key on which another rule decides
// now: one that stands at no level may be over its new limit. It walks all
// counters, in the background, and rests as long as each step took.
func (s *sweeper) rescan(ctx context.Context) {
	scanned := s.rules()
	var wait backoff
	for {
		select {
		case <-s.rulesChanged:
		case <-ctx.Done():
			return
		}
		for ctx.Err() == nil {
			rules := s.rules()
			changed := rules.Changed(scanned)
			if changed == nil {
				break
			}
			itself := func(key string) string { return key }
			if err := s.sweepWhere(ctx, changed, itself); err != nil && ctx.Err() == nil {
				s.log.Warn("looking for keys over their new limits failed, trying again", "error", err)
				wait.wait(ctx)
				continue
			}
			wait.reset()
			scanned = rules
		}
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
		if err := s.look(ctx, p, keys); err != nil && !s.left(ctx, p, err) {
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
