package windows

import "context"

// LeaveToGeneral has the general script answer all checks, or not.
func (s *Redis) LeaveToGeneral(all bool) { s.general = all }

// AnsweredQuick is how many calls the quick script has answered.
func (s *Redis) AnsweredQuick() int64 { return s.answeredQuick.Load() }

// SetClockAhead has it believe that the clock of Redis is so many ms ahead of this machine's.
func (s *Redis) SetClockAhead(ms int64) { s.ahead.Store(ms) }

// Quick asks the quick script alone, and gives which calls remain.
func (s *Redis) Quick(ctx context.Context, calls [][]Request, verdicts []Verdict) (rest []int, err error) {
	return s.quick(ctx, calls, verdicts)
}
