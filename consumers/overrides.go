package consumers

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/overrides"
	"github.com/streamcounter/streamcounter/windows"
)

// overridden holds targets whose override changed and that the sweeper has not examined since.
type overridden struct {
	mu      sync.Mutex
	targets map[string]struct{}
	some    chan struct{} // gets a signal when there are targets

	announced map[string]time.Time // key that a pattern blocks → when it was last added for that
}

// maxOverridden bounds the targets that wait. If there are more, the rest is not remembered, and the sweeper also
// examines every key that has a level.
const maxOverridden = 100_000

// noteOverridden makes the sweeper note the targets of each change from now on.
func (s *sweeper) noteOverridden(rules *windows.Rules) {
	if all := rules.Overrides(); all != nil {
		all.OnChange(func(targets []string) {
			s.overridden.add(targets)
			signal(s.raised) // the override may end soon
		})
	}
}

func (o *overridden) add(targets []string) {
	o.mu.Lock()
	if o.targets == nil {
		o.targets = map[string]struct{}{}
	}
	for _, t := range targets {
		if len(o.targets) <= maxOverridden {
			o.targets[t] = struct{}{}
		}
	}
	o.mu.Unlock()
	signal(o.some)
}

// blockedByPattern notes the keys of events that a block by pattern matches, each at most once a minute.
func (o *overridden) blockedByPattern(rules *windows.Rules, events []counters.Event) {
	if !rules.Overrides().Any() {
		return
	}
	now := time.Now()
	for _, e := range events {
		if !rules.Overrides().BlockedByPattern(e.Key) {
			continue
		}
		o.mu.Lock()
		if o.announced == nil || len(o.announced) > maxOverridden {
			o.announced = map[string]time.Time{}
		}
		due := now.Sub(o.announced[e.Key]) >= time.Minute
		if due {
			o.announced[e.Key] = now
		}
		o.mu.Unlock()
		if due {
			o.add([]string{e.Key})
		}
	}
}

func (o *overridden) take() map[string]struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	targets := o.targets
	o.targets = nil
	return targets
}

// Other processes read a change up to a second later. The sweeper examines the keys again, to correct what another
// process wrote in the meantime by the old state.
var overriddenAgain = []time.Duration{time.Second, 5 * time.Second}

// followOverridden examines keys whose override changed, at once and again later: their decisions may no longer hold,
// or may have other limits.
func (s *sweeper) followOverridden(ctx context.Context) {
	s.whenever(ctx, s.overridden.some, "looking at keys whose override changed", func() error {
		targets := s.overridden.take()
		if len(targets) > maxOverridden {
			signal(s.recheck)
		}
		if err := s.tryOverridden(ctx, targets); err != nil {
			return err
		}
		for _, d := range overriddenAgain {
			time.AfterFunc(d, func() { _ = s.tryOverridden(ctx, targets) })
		}
		return nil
	})
}

// tryOverridden examines the keys of targets. If that fails, the targets wait for the next try.
func (s *sweeper) tryOverridden(ctx context.Context, targets map[string]struct{}) error {
	err := s.sweepOverridden(ctx, targets)
	if err != nil {
		s.overridden.add(slices.Collect(maps.Keys(targets)))
	}
	return err
}

// sweepOverridden sweeps the keys of the targets. For a target that is a pattern, it also sweeps the keys that match
// it.
func (s *sweeper) sweepOverridden(ctx context.Context, targets map[string]struct{}) error {
	var patterns []func(key string) bool
	fields := map[int][]string{} // partition → what to look at
	for target := range targets {
		p := s.Counter.TargetPartition(target)
		fields[p] = append(fields[p], overrides.Field(target))
		if fits := overrides.Matcher(target); fits != nil {
			patterns = append(patterns, fits)
		}
	}
	for p, list := range fields {
		if err := s.sweepAll(ctx, p, list); err != nil {
			return err
		}
	}
	if len(patterns) == 0 {
		return nil
	}
	return s.sweepMatching(ctx, func(key string) bool {
		return slices.ContainsFunc(patterns, func(fits func(string) bool) bool { return fits(key) })
	})
}

// sweepMatching sweeps the keys that fit: those that have a level, and those that have a counter.
func (s *sweeper) sweepMatching(ctx context.Context, fits func(key string) bool) error {
	for _, p := range s.quarantine.open(ctx, s.Keys.All()) {
		fields, err := s.Counter.Levelled(ctx, p)
		if err != nil {
			return err
		}
		var matching []string
		for _, field := range fields {
			if key, _, _ := strings.Cut(field, "\n"); key != "" && fits(key) {
				matching = append(matching, overrides.Field(key))
			}
		}
		slices.Sort(matching)
		if err := s.sweepAll(ctx, p, slices.Compact(matching)); err != nil {
			return err
		}
	}
	return s.sweepWhere(ctx, fits, overrides.Field)
}

// The kinds of due records, as what is done with them.
const (
	endReservations = "ending reservations"
	endOverrides    = "ending overrides"
	sweepLevels     = "sweeping levels"
)

// sweepOrder has reservations first, because the end of a reservation can end a level that is due at the same time.
var sweepOrder = []string{endReservations, endOverrides, sweepLevels}

func kindOf(field string) string {
	if _, ok := counters.ReservationOf(field); ok {
		return endReservations
	} else if _, ok := overrides.TargetOf(field); ok {
		return endOverrides
	}
	return sweepLevels
}
