package api

import (
	"fmt"
	"strconv"
	"strings"
)

// InForce is what is in force for a key besides its windows. Answers and decisions embed it.
type InForce struct {
	// Penalty is nil where none is in force. While one is, the windows have nothing left.
	Penalty *Penalty `json:"penalty,omitempty"`
}

// Penalty is the step of a rule's penalty that is in force for a key: nothing is admitted until it ends.
type Penalty struct {
	Step int `json:"step"` // from 1
	Of   int `json:"of"`   // how many steps the rule has
	// UntilMs is when the step ends, in ms since 1970 by Redis's clock.
	UntilMs int64 `json:"until_ms"`
}

// DeniesAll reports whether nothing is admitted while this is in force.
func (f InForce) DeniesAll() bool { return f.Penalty != nil }

// WindowInForce gives the state of a window while this is in force for that many milliseconds more. If it denies
// all, nothing is left, and nothing is free before it ends.
func (f InForce) WindowInForce(w WindowState, leftMs int64) WindowState {
	if f.DeniesAll() {
		w.Remaining, w.NextFreeMs = 0, max(w.NextFreeMs, leftMs)
	}
	return w
}

// DenialDetail says why this denies a key of a rule; "" where it does not.
func (f InForce) DenialDetail(key, rule string) string {
	if p := f.Penalty; p != nil {
		return fmt.Sprintf("%s is in a penalty of rule %q (step %d of %d)", Shorten(key), rule, p.Step, p.Of)
	}
	return ""
}

// ReadInForce reads the fields of an entry of the outbox: penalty is step,of,until_ms.
func ReadInForce(field func(name string) string) (InForce, error) {
	text := field("penalty")
	if text == "" {
		return InForce{}, nil
	}
	numbers := [3]int64{}
	fields := strings.Split(text, ",")
	for i := range numbers {
		var err error
		if len(fields) == len(numbers) {
			numbers[i], err = strconv.ParseInt(fields[i], 10, 64)
		}
		if err != nil || len(fields) != len(numbers) {
			return InForce{}, fmt.Errorf(`%w: field "penalty" is %s, expected "step,of,until_ms"`, ErrBadTransition,
				Shorten(text))
		}
	}
	return InForce{&Penalty{Step: int(numbers[0]), Of: int(numbers[1]), UntilMs: numbers[2]}}, nil
}

func (f InForce) validateInForce() error {
	if p := f.Penalty; p != nil && (p.Step < 1 || p.Step > p.Of || p.UntilMs < 0 || p.UntilMs > maxMs) {
		return fmt.Errorf("%w: penalty has step %d of %d until %d, expected a step from 1 to as many as there are",
			ErrBadTransition, p.Step, p.Of, p.UntilMs)
	}
	return nil
}
