package consumers

import (
	"context"
	"log/slog"
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
	due, err := s.counter.NextDue(ctx)
	if err != nil {
		return 0, err
	}
	next := s.config.SweepEvery
	for p, ms := range due {
		if ms > 0 {
			next = min(next, time.Duration(ms)*time.Millisecond)
			continue
		}
		for {
			looked, _, err := s.counter.Sweep(ctx, p, s.rules(), 0, sweepStep, false)
			if err != nil {
				return 0, err
			}
			if looked < sweepStep {
				break
			}
		}
		next = min(next, 5*time.Millisecond) // what remains may be due in a moment
	}
	return next, nil
}

// all looks at every key that stands at a level. Keys that end meanwhile move
// others up, so it goes on until a whole step has been seen.
func (s *Sweeper) all(ctx context.Context) error {
	for p := range s.config.Keys.Partitions {
		for offset := int64(0); ; {
			looked, ended, err := s.counter.Sweep(ctx, p, s.rules(), offset, sweepStep, true)
			if err != nil {
				return err
			}
			if looked < sweepStep {
				break
			}
			offset += max(0, int64(looked)-ended)
		}
	}
	return nil
}
