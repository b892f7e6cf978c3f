package api

import (
	"fmt"
	"strconv"
	"strings"
)

// Penalty is the step of a rule's penalty that is in force for a key: nothing is admitted until it ends.
type Penalty struct {
	Step int `json:"step"` // from 1
	Of   int `json:"of"`   // how many steps the rule has
	// UntilMs is when the step ends, in ms since 1970 by Redis's clock.
	UntilMs int64 `json:"until_ms"`
}

// InPenalty is the state while a penalty lasts for that many milliseconds more: nothing is left, and nothing
// is free before it ends.
func (w WindowState) InPenalty(leftMs int64) WindowState {
	w.Remaining, w.NextFreeMs = 0, max(w.NextFreeMs, leftMs)
	return w
}

// ParsePenalty reads the field of an entry of the outbox: step,of,until_ms.
func ParsePenalty(text string) (*Penalty, error) {
	numbers := [3]int64{}
	fields := strings.Split(text, ",")
	for i := range numbers {
		var err error
		if len(fields) == len(numbers) {
			numbers[i], err = strconv.ParseInt(fields[i], 10, 64)
		}
		if err != nil || len(fields) != len(numbers) {
			return nil, fmt.Errorf(`%w: field "penalty" is %s, expected "step,of,until_ms"`, ErrBadTransition,
				Shorten(text))
		}
	}
	return &Penalty{Step: int(numbers[0]), Of: int(numbers[1]), UntilMs: numbers[2]}, nil
}

func (p *Penalty) validate() error {
	if p != nil && (p.Step < 1 || p.Step > p.Of || p.UntilMs < 0 || p.UntilMs > maxMs) {
		return fmt.Errorf("%w: penalty has step %d of %d until %d, expected a step from 1 to as many as there are",
			ErrBadTransition, p.Step, p.Of, p.UntilMs)
	}
	return nil
}
