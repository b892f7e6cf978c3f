package windows

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/document"
	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/lua"
)

// A penalty has up to MaxPenalties steps, of MinPenalty to MaxPenalty.
const (
	MaxPenalties  = 10
	MinPenalty    = time.Second
	MaxPenalty    = 31 * 24 * time.Hour
	DefaultForget = 24 * time.Hour
)

var wantForget = fmt.Sprintf("want %s to %s in whole milliseconds", inDays(MinPenalty), inDays(MaxWindow))

var penaltyOption = option{
	fields: []optionField{
		{"penalty", "list of durations", "none", fmt.Sprintf("a throttle denies for at least the first, the next one "+
			"the second: see [Penalties](#penalties). Up to %d steps of %s to %s, none shorter than before; not "+
			"beside `lease`", MaxPenalties, inDays(MinPenalty), inDays(MaxPenalty)),
			func(d *document.Document, r *Rule) document.Setter {
				return document.Leaves(d, &r.Penalty, duration)
			}},
		{"forget", "duration", fmt.Sprintf("`%s`", inDays(DefaultForget)), fmt.Sprintf("time after a penalty in which "+
			"a new throttle gets the next step, %s to %s", inDays(MinPenalty), inDays(MaxWindow)),
			func(d *document.Document, r *Rule) document.Setter {
				return given(d, &r.Forget, duration, "forget 0s: "+wantForget)
			}},
	},
	defaults: func(r *Rule) {
		r.Penalty = slices.Clone(r.Penalty)
		if len(r.Penalty) > 0 {
			r.Forget = cmp.Or(r.Forget, DefaultForget)
		}
	},
	validate: (*Rule).validatePenalty,
	state: func(r *Rule) string {
		if len(r.Penalty) == 0 {
			return "no penalty"
		}
		text := "a throttle denies for at least " + english.Span(r.Penalty[0])
		for i, d := range r.Penalty[1:] {
			if i == 0 {
				text += ", the next one within " + english.Span(r.Forget) + ": " + english.Span(d)
			} else {
				text += ", then " + english.Span(d)
			}
		}
		return text
	},
	says:    func(r *Rule) bool { return !r.Shadow && len(r.Penalty) > 0 },
	follows: func(*Rule) string { return "current penalties end" },
	notReplayed: func(r *Rule) string {
		if len(r.Penalty) == 0 {
			return ""
		}
		return "penalty: throttles would last longer"
	},

	algorithm: lua.Penalty,
	has:       func(r *Rule) bool { return len(r.Penalty) > 0 && !r.Shadow && !r.Unlevelled },
	configure: func(r *Rule, m *lua.Meter) {
		more := lua.PenaltyOf{ForgetMs: r.Forget.Milliseconds()}
		for _, d := range r.Penalty {
			more.Steps = append(more.Steps, d.Milliseconds())
		}
		m.More = more
	},
	inForce: func(r *Rule, values []int64) (f api.InForce) {
		if step, until := values[0], values[1]; step > 0 {
			of := len(r.Penalty) // the rule can have lost steps since the penalty began
			f.Penalty = &api.Penalty{Step: min(int(step), of), Of: of, UntilMs: until}
		}
		return f
	},
}

func (r *Rule) validatePenalty() *fault {
	switch {
	case len(r.Penalty) == 0 && r.Forget != 0:
		return faultf("forget", "forget %s: only with a penalty", inDays(r.Forget))
	case len(r.Penalty) == 0:
		return nil
	case len(r.Penalty) > MaxPenalties:
		return faultf("penalty", "penalty has %d steps: want at most %d", len(r.Penalty), MaxPenalties)
	case r.Lease != 0:
		return &fault{"penalty", "lease",
			"penalty beside lease: leased units ignore penalties; want only one of the two"}
	case r.Forget < MinPenalty || r.Forget > MaxWindow || r.Forget%time.Millisecond != 0:
		return faultf("forget", "forget %s: %s", inDays(r.Forget), wantForget)
	}
	for i, d := range r.Penalty {
		at := fmt.Sprintf("penalty[%d]", i)
		switch {
		case d < MinPenalty || d > MaxPenalty || d%time.Millisecond != 0:
			return faultf(at, "penalty %s: want %s to %s in whole milliseconds", inDays(d), inDays(MinPenalty),
				inDays(MaxPenalty))
		case i > 0 && d < r.Penalty[i-1]:
			return faultf(at, "penalty %s after %s: want no step shorter than the one before", inDays(d),
				inDays(r.Penalty[i-1]))
		}
	}
	return nil
}
