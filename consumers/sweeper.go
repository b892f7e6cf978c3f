package consumers

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/stream"
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

	// patience bounds the wait after a failed pass: short where other servers than
	// the one that failed hold partitions too.
	patience time.Duration
}

// sweepStep is how many keys one script call looks at: a few ms at most.
const sweepStep = 100

func newSweeper(c Config) *Sweeper {
	s := &Sweeper{counter: c.Counter, rules: c.Rules, config: c, log: c.Log, recheck: make(chan struct{}, 1), patience: longestWait}
	if len(stream.Lanes(c.Redis, c.Keys)) > 1 {
		s.patience = c.SweepEvery
	}
	return s
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
	var said time.Time
	for ctx.Err() == nil {
		next, err := s.pass(ctx)
		if err != nil && ctx.Err() == nil {
			if time.Since(said) >= longestWait {
				s.log.Warn("sweeping failed, trying again", "error", err)
				said = time.Now()
			}
			next = max(next, wait.grow(s.patience))
		} else {
			wait.reset()
		}
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

// answerWithin bounds how long one server that does not answer keeps the
// partitions of the others waiting, on a Cluster.
const answerWithin = time.Second

// pass sweeps what is due and says how long to wait for the next. Partitions that
// can be swept are, whatever the others do: a master that failed over must not
// hold up the levels of all.
func (s *Sweeper) pass(ctx context.Context) (time.Duration, error) {
	asking, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	due, failed := s.counter.NextDue(asking)
	next := s.config.SweepEvery
	for p, n := range due {
		if n.DueMs > n.NowMs {
			next = min(next, time.Duration(n.DueMs-n.NowMs)*time.Millisecond)
			continue
		}
		if err := s.sweep(ctx, p, n.NowMs); err != nil {
			failed = errors.Join(failed, err)
		}
		next = min(next, 5*time.Millisecond) // what remains may be due in a moment
	}
	return next, failed
}

func (s *Sweeper) sweep(ctx context.Context, p int, now int64) error {
	for {
		keys, err := s.counter.Due(ctx, p, now, sweepStep)
		if err != nil {
			return err
		}
		if _, _, err := s.counter.Sweep(ctx, p, s.rules(), keys); err != nil {
			return err
		}
		if len(keys) < sweepStep {
			return nil
		}
	}
}

// all looks at every key that stands at a level. The keys are listed first, as
// looking at them moves them about in the list.
func (s *Sweeper) all(ctx context.Context) error {
	var failed error
	for p := range s.config.Keys.Partitions {
		keys, err := s.counter.Levelled(ctx, p)
		for step := range slices.Chunk(keys, sweepStep) {
			if _, _, e := s.counter.Sweep(ctx, p, s.rules(), step); e != nil {
				err = e
				break
			}
		}
		failed = errors.Join(failed, err)
	}
	return failed
}
