package consumers

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/windows"
)

// Sweeper looks again at keys whose level may have ended, when it may have:
// releases and clears come from here, and renewals of what still stands. Any
// number of sweepers may run: a sweep reads the truth and writes what changed.
type Sweeper struct {
	counter *windows.Redis
	rules   func() *windows.Rules
	config  Config
	log     *slog.Logger
	recheck chan struct{}
}

// sweepStep is how many keys one script call looks at: a few ms at most.
const sweepStep = 100

func newSweeper(c Config) *Sweeper {
	return &Sweeper{counter: c.Counter, rules: c.Rules, config: c, log: c.Log, recheck: make(chan struct{}, 1)}
}

// Recheck makes the sweeper look at every key that stands at a level, due or
// not: the rules have changed.
func (s *Sweeper) Recheck() {
	select {
	case s.recheck <- struct{}{}:
	default:
	}
}

// Run sweeps until ctx ends.
func (s *Sweeper) Run(ctx context.Context) {
	var wait backoff
	for ctx.Err() == nil {
		next, err := s.pass(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("sweeping failed, trying again", "error", err)
			wait.wait(ctx)
			continue
		}
		wait.reset()
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-s.recheck:
			if err := s.all(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("re-examining keys after a change of rules failed", "error", err)
				s.Recheck()
			}
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// pass sweeps what is due and says how long to wait for the next.
func (s *Sweeper) pass(ctx context.Context) (time.Duration, error) {
	now, due, err := s.counter.NextDue(ctx)
	if err != nil {
		return 0, err
	}
	next := s.config.SweepEvery
	for p, at := range due {
		if at > now {
			next = min(next, time.Duration(at-now)*time.Millisecond)
			continue
		}
		for {
			keys, err := s.counter.Due(ctx, p, now, sweepStep)
			if err != nil {
				return 0, err
			}
			if _, err := s.counter.Sweep(ctx, p, s.rules(), keys); err != nil {
				return 0, err
			}
			if len(keys) < sweepStep {
				break
			}
		}
		next = min(next, 5*time.Millisecond) // what remains may be due in a moment
	}
	return next, nil
}

// all looks at every key that stands at a level. The keys are listed first, as
// looking at them moves them about in the list.
func (s *Sweeper) all(ctx context.Context) error {
	for p := range s.config.Keys.Partitions {
		keys, err := s.counter.Levelled(ctx, p)
		if err != nil {
			return err
		}
		for step := range slices.Chunk(keys, sweepStep) {
			if _, err := s.counter.Sweep(ctx, p, s.rules(), step); err != nil {
				return err
			}
		}
	}
	return nil
}
