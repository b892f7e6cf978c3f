package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
)

// appendUntil appends events. It appends events with an id again until they are known
// to be stored or ctx ends, because the same id counts only once. Events without an id
// are sent once.
func (l *Log) appendUntil(ctx context.Context, items []item, pause func(ctx context.Context,
	attempt int) bool) Outcome {
	out := l.append(ctx, items)
	total := out.withoutIDs()
	unknown := map[identity]bool{} // sent without a reply at least once
	for attempt := 1; ; attempt++ {
		var again []item
		for _, e := range slices.Concat(out.Refused, out.Unknown) {
			if e.ID != "" {
				again = append(again, item{e, 1})
			}
		}
		if len(again) == 0 || errors.Is(out.Err, ErrMismatch) || !pause(ctx, attempt) {
			return out
		}
		for _, e := range out.Unknown {
			unknown[identity{e.Key, e.ID}] = true
		}
		next := l.append(ctx, again)
		// An event that is refused now may have been stored by an earlier attempt.
		maybe := func(e api.Event) bool { return unknown[identity{e.Key, e.ID}] }
		for _, e := range next.Refused {
			if maybe(e) {
				next.Unknown = append(next.Unknown, e)
			}
		}
		next.Refused = slices.DeleteFunc(next.Refused, maybe)
		if len(next.Unknown) > 0 && !errors.Is(next.Err, api.ErrOutcomeUnknown) {
			next.Err = fmt.Errorf("%w: %w", api.ErrOutcomeUnknown, next.Err)
		}
		total.Appended += next.Appended
		total.Entries += next.Entries
		out = total.with(next)
	}
}

// with adds the events of next that are not stored, which are one event each. The failures of the attempts in between
// are left out.
func (o Outcome) with(next Outcome) Outcome {
	o.Refused, o.Unknown = slices.Concat(o.Refused, next.Refused), slices.Concat(o.Unknown, next.Unknown)
	o.RefusedEvents += len(next.Refused)
	o.UnknownEvents += len(next.Unknown)
	o.Err = errors.Join(o.Err, next.Err)
	return o
}

// withoutIDs leaves out the refused and unknown events with an id, which are one event each.
func (o Outcome) withoutIDs() Outcome {
	plain := func(list []api.Event) (kept []api.Event) {
		for _, e := range list {
			if e.ID == "" {
				kept = append(kept, e)
			}
		}
		return kept
	}
	refused, unknown := len(o.Refused), len(o.Unknown)
	o.Refused, o.Unknown = plain(o.Refused), plain(o.Unknown)
	o.RefusedEvents -= refused - len(o.Refused)
	o.UnknownEvents -= unknown - len(o.Unknown)
	if len(o.Refused)+len(o.Unknown) == 0 {
		o.Err = nil
	}
	return o
}

// identity identifies an event with an id.
type identity struct{ key, id string }

// pauseBetween waits 50 ms after the first attempt, and twice as long after each
// further attempt, up to a second. It returns false if ctx ends before.
func pauseBetween(ctx context.Context, attempt int) bool {
	return pause.For(ctx, min(50*time.Millisecond<<min(attempt-1, 10), time.Second))
}
