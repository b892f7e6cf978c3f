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

func (p *Penalty) until() int64 {
	if p == nil {
		return 0
	}
	return p.UntilMs
}

func (p *Penalty) detail(key, rule string) string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf("%s is in a penalty of rule %q (step %d of %d)", Shorten(key), rule, p.Step, p.Of)
}

func (p *Penalty) text(timeText func(ms int64) string) string {
	switch {
	case p == nil:
		return ""
	case timeText == nil:
		return fmt.Sprintf("penalty %d of %d", p.Step, p.Of)
	}
	return fmt.Sprintf("penalty, step %d of %d, until %s", p.Step, p.Of, timeText(p.UntilMs))
}

// readPenalty reads step,of,until_ms.
func readPenalty(text string) (*Penalty, error) {
	if text == "" {
		return nil, nil
	}
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
