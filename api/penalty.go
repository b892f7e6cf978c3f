package api

import (
	"fmt"
	"strconv"
	"strings"
)

// InForce is what is in force for a key besides its windows. Answers and decisions embed it.
type InForce struct {
	// Penalty is nil if none is in force. While one is in force, the windows have no units left.
	Penalty *Penalty `json:"penalty,omitempty"`
}

// Penalty is the step of a rule's penalty that is in force for a key: nothing is admitted until it ends.
type Penalty struct {
	Step int `json:"step"` // from 1
	Of   int `json:"of"`   // how many steps the rule has
	// UntilMs is when the step ends, in ms since 1970 by Redis's clock.
	UntilMs int64 `json:"until_ms"`
}

// DeniesUntilMs is the time until which nothing is admitted, in ms since 1970 by Redis's clock; 0 if nothing is in
// force.
func (f InForce) DeniesUntilMs() int64 {
	if f.Penalty == nil {
		return 0
	}
	return f.Penalty.UntilMs
}

// DenialDetail returns why a key of a rule is denied; "" if nothing is in force.
func (f InForce) DenialDetail(key, rule string) string {
	if f.Penalty == nil {
		return ""
	}
	return fmt.Sprintf("%s is in a penalty of rule %q (step %d of %d)", Shorten(key), rule, f.Penalty.Step,
		f.Penalty.Of)
}

// InForceText returns a text for people about what is in force. timeText, if not nil, formats the time when that
// ends. The text is empty if nothing is in force.
func (f InForce) InForceText(timeText func(ms int64) string) string {
	p := f.Penalty
	switch {
	case p == nil:
		return ""
	case timeText == nil:
		return fmt.Sprintf("penalty %d of %d", p.Step, p.Of)
	}
	return fmt.Sprintf("penalty, step %d of %d, until %s", p.Step, p.Of, timeText(p.UntilMs))
}

// WindowInForce returns the state of a window while f is in force for leftMs more: nothing is left, and nothing comes
// back before f ends.
func (f InForce) WindowInForce(w WindowState, leftMs int64) WindowState {
	if f.DeniesUntilMs() > 0 {
		w.Remaining, w.NextFreeMs = 0, max(w.NextFreeMs, leftMs)
	}
	return w
}

// ReadInForce reads an InForce from the fields of an entry of the outbox: penalty is step,of,until_ms.
func ReadInForce(field func(name string) string) (f InForce, err error) {
	text := field("penalty")
	if text == "" {
		return f, nil
	}
	numbers := [3]int64{}
	fields := strings.Split(text, ",")
	for i := range numbers {
		if len(fields) == len(numbers) {
			numbers[i], err = strconv.ParseInt(fields[i], 10, 64)
		}
		if err != nil || len(fields) != len(numbers) {
			return f, fmt.Errorf(`%w: field "penalty" is %s, expected "step,of,until_ms"`, ErrBadTransition,
				Shorten(text))
		}
	}
	f.Penalty = &Penalty{Step: int(numbers[0]), Of: int(numbers[1]), UntilMs: numbers[2]}
	return f, nil
}

func (f InForce) validateInForce() error {
	p := f.Penalty
	if p != nil && (p.Step < 1 || p.Step > p.Of || p.UntilMs < 0 || p.UntilMs > maxMs) {
		return fmt.Errorf("%w: penalty has step %d of %d until %d, expected a step from 1 to as many as there are",
			ErrBadTransition, p.Step, p.Of, p.UntilMs)
	}
	return nil
}
