package counters_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// The texts of stories: answers, and what was published.

// said returns the answer to a check of a key.
func said(plan *windows.Plan, v counters.Verdict) string {
	text := verdict("allowed", "denied", v.Items[0].RetryAfter)
	for i, s := range v.Items[0].Shadows {
		text += "; " + plan.Shadows[i].Name + verdict(" would allow", " would deny", s.RetryAfter)
	}
	return text + "; " + standing(plan, v.Items[0])
}

func verdict(allowed, denied string, wait time.Duration) string {
	switch {
	case wait == 0:
		return allowed
	case wait < 0:
		return denied + " for ever"
	default:
		return denied + ", retry after " + wait.String()
	}
}

func standing(plan *windows.Plan, st windows.KeyState) string {
	var parts []string
	add := func(rule *windows.Rule, s windows.KeyState, what string) {
		for i, w := range rule.Windows {
			parts = append(parts, fmt.Sprintf("%d of %d per %s%s", s.Windows[i].Used, w.Limit, perOf(w), what))
		}
	}
	if plan.Live != nil {
		add(plan.Live, st, "")
	}
	for i, s := range st.Shadows {
		add(plan.Shadows[i], s, " ("+plan.Shadows[i].Name+")")
	}
	return strings.Join(parts, ", ")
}

// published empties the outboxes: a line per transition.
func (y *story) published() (lines []string) {
	for _, values := range y.drain(y.t) {
		v := func(name string) string { return values[name].(string) }
		line := fmt.Sprintf("%s %s%% %s by %s: %s of %s per %s, since %s, until %s", v("state"), v("level"), v("key"),
			v("rule"), v("used"), v("limit"), ms(y.Number(v("window"))), y.relative(v("since")), y.relative(v("until")))
		if at := y.Number(v("at")); at != y.clock.ms {
			line += ", at " + y.relative(v("at"))
		}
		for _, flag := range v("flags") {
			line += map[rune]string{'s': ", shadow", 'r': ", renewed", 'f': ", in flight"}[flag]
		}
		if seen, has := values["values"]; has {
			line += fmt.Sprint(", values ", seen)
		}
		lines = append(lines, line)
	}
	return lines
}

// corrupted names the keys in Redis that were reported as corrupt since the last time.
func (y *story) corrupted() (lines []string) {
	for _, name := range *y.found {
		_, place, _ := strings.Cut(name, "}:")
		if key, ok := strings.CutPrefix(place, lua.Form(y.algorithm)+":"); ok {
			place = "COUNTER:" + key
		}
		lines = append(lines, place+" is corrupt")
	}
	*y.found = nil
	return lines
}

func (y *story) relative(at string) string { return ms(y.Number(at) - start).String() }

func perOf(w windows.Window) string {
	if w.Calendar.Unit != "" {
		return w.Calendar.String()
	}
	return w.Per.String()
}
