package counters

import (
	"context"

	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// maxCheckKeys is how many keys one script call takes. A call ends after the check that reaches this number, because
// Redis answers no other client while the script runs: 20 to 40 ms for so many keys.
const maxCheckKeys = 1024

// Check implements Counter. All keys are in one shard. Package check decides over several shards.
func (s *Redis) Check(ctx context.Context, requests []Request) (Verdict, error) {
	got, err := s.CheckMany(ctx, [][]Request{requests})
	if err != nil {
		return Verdict{}, err
	}
	return got[0], nil
}

// CheckMany answers calls that came at the same time. It answers each as Check does, one
// after the other, and independent of the other calls. All keys are in one shard. The first
// verdict has the transitions of all calls. If it returns an error, it also returns the
// verdicts of the calls that were answered. The verdicts of the other calls have no Items.
func (s *Redis) CheckMany(ctx context.Context, calls [][]Request) (verdicts []Verdict, err error) {
	verdicts = make([]Verdict, len(calls))
	for _, call := range calls {
		for _, request := range call {
			s.noticePlan(request.Plan)
		}
	}
	todo := make([]int, len(calls))
	for i := range todo {
		todo[i] = i
	}
	for err == nil && len(todo) > 0 {
		err = s.retryInPeriod(func() (err error) {
			todo, err = s.checkSome(ctx, calls, todo, verdicts)
			return err
		})
	}
	return verdicts, err
}

// checkSome runs the calls in todo that can share a run, and returns the other calls.
// If the run fails, it returns all of todo. If one call fails after the calls were run
// one by one (checkEach), it returns the error and the other calls.
func (s *Redis) checkSome(ctx context.Context, calls [][]Request, todo []int, verdicts []Verdict) (later []int,
	err error) {
	b := newCheckRun(s, len(todo))
	var taken []int
	for n, i := range todo {
		if len(b.keys) >= maxCheckKeys {
			later = append(later, todo[n:]...)
			break
		}
		ok, err := b.add(calls[i])
		switch {
		case err != nil:
			return todo, err
		case ok:
			taken = append(taken, i)
		default: // this run has its key under another plan (the rules have just changed), or has its replay
			later = append(later, i)
		}
	}
	got, transitions, err := b.run(ctx)
	if redisclient.IsWrongType(err) && len(taken) > 1 {
		return later, s.checkEach(ctx, calls, taken, verdicts)
	}
	if err != nil {
		return todo, err
	}
	for n, i := range taken {
		verdicts[i] = got[n]
	}
	verdicts[0].Transitions += transitions
	return later, nil
}

// checkEach runs calls one by one, because one foreign key of a wrong type makes Redis refuse a whole run. It returns
// the first error, and answers the other calls.
func (s *Redis) checkEach(ctx context.Context, calls [][]Request, todo []int, verdicts []Verdict) (first error) {
	for _, i := range todo {
		err := s.retryInPeriod(func() error { // not left to the caller's retryInPeriod, which would not run these again
			_, err := s.checkSome(ctx, calls, []int{i}, verdicts)
			return err
		})
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}
