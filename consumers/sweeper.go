package consumers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/windows"
)

// sweeper examines keys again when their level may have ended. Releases and clears come from here, and renewals of
// decisions that still hold. Any number of sweepers may run: a sweep reads the present counts and writes what
// changed.
type sweeper struct {
	*shared
	reservations *reservations.Store
	recheck      chan struct{} // starts a round: examine all keys that have a level
	round        round

	changes    ruleChanges // find other keys that are over a new limit (rescan.go)
	overridden overridden  // examine keys for which an operator set something

	// raised gets a signal when a fold of this process changes a level. The level of an old event may end soon.
	raised chan struct{}
	// maxIdleWait bounds the wait while no key has a level.
	maxIdleWait time.Duration

	// maxRetryWait bounds the wait after a failed pass. It is short if there are several servers, because partitions of
	// servers that answer wait too.
	maxRetryWait time.Duration
}

// sweepStep is how many keys one script call examines, which takes a few ms at most. After sweepSteps such calls the
// sweeper goes on to the next partition.
const sweepStep, sweepSteps = 100, 100

func newSweeper(all *shared) *sweeper {
	s := &sweeper{shared: all, reservations: reservations.New(all.Counter), recheck: make(chan struct{}, 1),
		raised: make(chan struct{}, 1), maxIdleWait: time.Second, maxRetryWait: longestWait,
		changes:    ruleChanges{scanned: all.Rules(), some: make(chan struct{}, 1)},
		overridden: overridden{some: make(chan struct{}, 1)}}
	s.noteOverridden(s.Rules())
	if len(s.shards) > 1 {
		s.maxRetryWait = s.SweepEvery
	}
	return s
}

// Processes read a changed file at different times, up to a minute apart. The sweeper examines the keys again, to
// correct what a process with the old rules wrote meanwhile.
var recheckAfter = []time.Duration{time.Second, 5 * time.Second, time.Minute + 5*time.Second}

// Recheck makes the sweeper examine every key that has a level, due or not, and every key that may have got one: call
// it when the rules have changed.
func (s *sweeper) Recheck() {
	signal(s.recheck)
	s.changes.add(s.Rules())
	for _, d := range recheckAfter {
		time.AfterFunc(d, func() { signal(s.recheck) })
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a signal is waiting already
	}
}

// whenever calls do after each signal, and again after a pause for as long as it fails, until ctx ends.
func (s *sweeper) whenever(ctx context.Context, some chan struct{}, step string, do func() error) {
	var wait backoff
	for {
		select {
		case <-some:
		case <-ctx.Done():
			return
		}
		err := do()
		if ctx.Err() != nil {
			return
		}
		s.outages.note(step, 0, err)
		if err == nil {
			wait.reset()
			continue
		}
		signal(some)
		wait.wait(ctx)
	}
}

// run sweeps until ctx ends.
func (s *sweeper) run(ctx context.Context) {
	var wait backoff
	var scanning sync.WaitGroup
	defer scanning.Wait()
	scanning.Go(func() {
		s.whenever(ctx, s.changes.some, "looking for keys over their new limits", func() error { return s.rescan(ctx) })
	})
	scanning.Go(func() { s.followOverridden(ctx) })
	signal(s.recheck) // the rules may have changed while nobody ran
	for ctx.Err() == nil {
		next, err := s.turn(ctx)
		if ctx.Err() == nil {
			s.outages.note("releasing throttles", 0, err)
		}
		if err != nil && ctx.Err() == nil {
			next = max(next, wait.grow(s.maxRetryWait))
		} else {
			wait.reset()
		}
		recheck := s.recheck
		if s.round.unfinished() {
			recheck = nil // start a new round only when this one is over
		}
		raised := s.raised
		if next <= s.SweepEvery {
			raised = nil
		}
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-raised:
			pause.For(ctx, s.SweepEvery)
		case <-recheck:
			s.round.parts = slices.Clone(s.quarantine.open(ctx, s.Keys.All()))
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// round is what remains of a round over all keys that have a level.
type round struct {
	parts []int // partitions whose keys are not listed yet
	p     int
	keys  []string // of partition p
}

func (r *round) unfinished() bool { return len(r.parts) > 0 || len(r.keys) > 0 }

// turn sweeps the keys that are due, and then one step of what remains of a round. So a release that is due never
// waits for more than one step. It returns how long to wait for the next turn.
func (s *sweeper) turn(ctx context.Context) (time.Duration, error) {
	next, failed := s.pass(ctx)
	if !s.round.unfinished() {
		return next, failed
	}
	if err := s.step(ctx); err != nil {
		signal(s.recheck) // start a new round
		failed = errors.Join(failed, fmt.Errorf("re-examining keys after a change of rules: %w", err))
	}
	return 0, failed
}

// step examines the next keys of a round. It lists all keys of a partition before it examines the first one, because
// examining keys changes their order in the list.
func (s *sweeper) step(ctx context.Context) (err error) {
	r := &s.round
	if len(r.keys) == 0 {
		r.p, r.parts = r.parts[0], r.parts[1:]
		r.keys, err = s.Counter.Levelled(ctx, r.p)
	}
	if err == nil {
		step := r.keys[:min(len(r.keys), sweepStep)]
		r.keys = r.keys[len(step):]
		err = s.sweepRecords(ctx, r.p, step)
	}
	if err == nil {
		return nil
	}
	r.keys = nil
	if s.quarantine.explains(ctx, err, r.p) {
		return nil
	}
	return err
}

// answerWithin bounds how long one server that does not answer can delay the partitions of the other servers, on a
// Cluster.
const answerWithin = time.Second

// pass sweeps the keys that are due and returns how long to wait for the next pass. It sweeps every partition that
// can be swept, even if others fail: a master that failed over must not hold up the levels of all partitions.
func (s *sweeper) pass(ctx context.Context) (time.Duration, error) {
	asking, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	open := s.quarantine.open(asking, s.Keys.All())
	due, failed := s.Counter.NextDue(asking, open)
	if redisclient.IsRefusal(failed) {
		if quarantined, err := s.quarantine.examine(asking, open...); quarantined {
			failed = err // what is due in the other partitions is known
		}
	}
	next := s.SweepEvery
	if len(due) == 0 && failed == nil {
		next = s.idleWait()
	}
	for p, n := range due {
		if n.DueMs > n.NowMs {
			next = min(next, time.Duration(min(n.DueMs-n.NowMs, time.Hour.Milliseconds()))*time.Millisecond)
			continue
		}
		if err := s.sweep(ctx, p, n.NowMs); err != nil && !s.quarantine.explains(ctx, err, p) {
			failed = errors.Join(failed, err)
		}
		next = min(next, 5*time.Millisecond) // more keys may be due in a moment
	}
	return next, failed
}

// idleWait returns the wait while no key has a level. Another process may raise a level during the wait. That
// level lasts at least for the hold of its rule, so it does not end before the next pass.
func (s *sweeper) idleWait() time.Duration {
	wait := s.maxIdleWait
	for _, r := range s.Rules().List() {
		if !r.Unlevelled {
			wait = min(wait, r.Hold)
		}
	}
	return max(wait, s.SweepEvery)
}

func (s *sweeper) sweep(ctx context.Context, p int, now int64) error {
	for range sweepSteps {
		keys, err := s.Counter.DueRecords(ctx, p, now, sweepStep)
		if err != nil {
			return err
		}
		if err := s.sweepRecords(ctx, p, keys); err != nil {
			return err
		}
		if len(keys) < sweepStep {
			break
		}
	}
	return nil
}

// sweepAll sweeps records of a partition step by step. It is no error if the partition is quarantined.
func (s *sweeper) sweepAll(ctx context.Context, p int, fields []string) error {
	for step := range slices.Chunk(fields, sweepStep) {
		if err := s.sweepRecords(ctx, p, step); err != nil && !s.quarantine.explains(ctx, err, p) {
			return err
		}
	}
	return nil
}

// sweepRecords sweeps up to sweepStep records of a partition, one kind after the other. If Redis refuses one kind, it
// still sweeps the others.
func (s *sweeper) sweepRecords(ctx context.Context, p int, fields []string) (failed error) {
	kinds := map[string][]string{}
	for _, field := range fields {
		kind := kindOf(field)
		kinds[kind] = append(kinds[kind], field)
	}
	for _, kind := range sweepOrder {
		if list := kinds[kind]; len(list) > 0 {
			failed = errors.Join(failed, s.sweepKind(ctx, p, kind, list))
		}
	}
	return failed
}

// sweepKind sweeps records of one kind. If Redis refuses this, although the partition is not quarantined, the records
// are made due again later. So neither other records nor other partitions wait for them.
func (s *sweeper) sweepKind(ctx context.Context, p int, kind string, fields []string) error {
	var corrupt int64
	err := s.inTurn(p, func(rules *windows.Rules) (err error) {
		_, corrupt, err = s.reservations.Sweep(ctx, p, rules, fields)
		return err
	})
	step := kind + " of partition " + label(p)
	if err == nil {
		s.outages.note(step, p, nil)
	} else if redisclient.IsRefusal(err) && !s.quarantine.explains(ctx, err, p) {
		if name := eventlog.TypesOf(ctx, s.Redis, s.Keys, []int{p})[p].Beside; name != "" {
			err = fmt.Errorf("a foreign key has the wrong type: %s: %w", name, err)
		}
		s.outages.note(step, p, err)
		err = s.Counter.Postpone(ctx, p, fields, s.QuarantineFor)
	}
	if corrupt > 0 {
		s.Metrics.corruptLevels.Add(float64(corrupt))
		s.Log.Warn("corrupt records of levels are removed", "partition", p, "records", corrupt)
	}
	return err
}
