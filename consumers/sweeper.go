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
	aside   *quarantine

	// patience bounds the wait after a failed pass: short where other servers than
	// the one that failed hold partitions too.
	patience time.Duration
}

// sweepStep is how many keys one script call looks at: a few ms at most. After
// sweepSteps it is the next partition's turn.
const sweepStep, sweepSteps = 100, 100

func newSweeper(c Config, q *quarantine) *Sweeper {
	s := &Sweeper{counter: c.Counter, rules: c.Rules, config: c, log: c.Log, aside: q, recheck: make(chan struct{}, 1), patience: longestWait}
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
	open := s.aside.without(asking, s.config.Keys.All())
	due, failed := s.counter.NextDue(asking, open)
	if stream.IsRefusal(failed) {
		if aside, err := s.aside.look(asking, open...); aside {
			failed = err // what the others have due is known
		}
	}
	next := s.config.SweepEvery
	for p, n := range due {
		if n.DueMs > n.NowMs {
			next = min(next, time.Duration(min(n.DueMs-n.NowMs, time.Hour.Milliseconds()))*time.Millisecond)
			continue
		}
		if err := s.sweep(ctx, p, n.NowMs); err != nil && !s.left(ctx, p, err) {
			failed = errors.Join(failed, err)
		}
		next = min(next, 5*time.Millisecond) // what remains may be due in a moment
	}
	return next, failed
}

func (s *Sweeper) sweep(ctx context.Context, p int, now int64) error {
	for range sweepSteps {
		keys, err := s.counter.Due(ctx, p, now, sweepStep)
		if err != nil {
			return err
		}
		if err := s.look(ctx, p, keys); err != nil {
			return err
		}
		if len(keys) < sweepStep {
			break
		}
	}
	return nil
}

// look sweeps some keys of a partition.
func (s *Sweeper) look(ctx context.Context, p int, keys []string) error {
	_, forgotten, err := s.counter.Sweep(ctx, p, s.rules(), keys)
	if forgotten > 0 {
		s.config.Metrics.forgotten.Add(float64(forgotten))
		s.log.Warn("records that none of ours wrote stood among the levels, they are forgotten", "partition", p, "records", forgotten)
	}
	return err
}

// left tells of an error whether it is for keys of the partition that are not ours:
// then the partition is left out, and the others need not wait.
func (s *Sweeper) left(ctx context.Context, p int, err error) bool {
	if !stream.IsRefusal(err) {
		return false
	}
	aside, _ := s.aside.look(ctx, p)
	return aside
}

// all looks at every key that stands at a level. The keys are listed first, as
// looking at them moves them about in the list.
func (s *Sweeper) all(ctx context.Context) error {
	var failed error
	for _, p := range s.aside.without(ctx, s.config.Keys.All()) {
		keys, err := s.counter.Levelled(ctx, p)
		for step := range slices.Chunk(keys, sweepStep) {
			if err = s.look(ctx, p, step); err != nil {
				break
			}
		}
		if err != nil && !s.left(ctx, p, err) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}
