package windows

import (
	"context"
	"slices"
)

// LeaveToGeneral has the general script answer all checks, or not.
func (s *Redis) LeaveToGeneral(all bool) { s.general = all }

// AnsweredQuick is how many calls the quick script has answered.
func (s *Redis) AnsweredQuick() int64 { return s.answeredQuick.Load() }

// SetClockAhead has it believe that the clock of Redis is so many ms ahead of this machine's.
func (s *Redis) SetClockAhead(ms int64) { s.ahead.Store(ms) }

// CheckInOrder is CheckMany, and puts the calls in the order in which they were answered: first those that the
// quick script answers, whose number it gives.
func (s *Redis) CheckInOrder(ctx context.Context, calls [][]Request) (ordered [][]Request, verdicts []Verdict,
	quick int, err error) {
	got := make([]Verdict, len(calls))
	rest, err := s.quick(ctx, calls, got)
	var others [][]Request
	for i, call := range calls {
		if slices.Contains(rest, i) {
			others = append(others, call)
		} else {
			ordered, verdicts = append(ordered, call), append(verdicts, got[i])
		}
	}
	if err == nil && len(others) > 0 {
		general := s.general
		s.general = true
		got, err = s.CheckMany(ctx, others)
		s.general = general
	}
	return append(ordered, others...), append(verdicts, got[:len(others)]...), len(verdicts), err
}

// IsUnfit says whether a key is remembered to have kept calls of several keys from the quick script.
func (s *Redis) IsUnfit(p *Plan, key string) bool {
	return s.unfit.has(s.counter(Request{Plan: p, Key: key}, 0))
}
