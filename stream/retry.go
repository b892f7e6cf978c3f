package stream

import (
	"context"
	"errors"
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
	unknown := map[identity]bool{} // sent without a reply at least once
	for attempt := 1; ; attempt++ {
		var again []item
		for _, e := range out.Refused {
			if e.ID != "" {
				again = append(again, item{e, 1})
			}
		}
		for _, e := range out.Unknown {
			if e.ID != "" {
				again = append(again, item{e, 1})
				unknown[identity{e.Key, e.ID}] = true
			}
		}
		if len(again) == 0 || !pause(ctx, attempt) {
			return out
		}
		next := l.append(ctx, again)
		// An event that is refused now may have been stored by an earlier attempt.
		refused := next.Refused
		next.Refused = nil
		for _, e := range refused {
			if unknown[identity{e.Key, e.ID}] {
				next.Unknown = append(next.Unknown, e)
				next.Err = errors.Join(next.Err, api.ErrOutcomeUnknown)
			} else {
				next.Refused = append(next.Refused, e)
			}
		}
		out.Appended += next.Appended
		out.Entries += next.Entries
		// The events with ids, which are one event each, are counted in next.
		out.RefusedEvents -= len(out.Refused)
		out.UnknownEvents -= len(out.Unknown)
		out.Refused, out.Unknown = withoutID(out.Refused), withoutID(out.Unknown)
		out.RefusedEvents += len(out.Refused) + len(next.Refused)
		out.UnknownEvents += len(out.Unknown) + len(next.Unknown)
		if len(out.Refused)+len(out.Unknown) == 0 {
			out.Err = nil
		}
		out.Refused, out.Unknown = append(out.Refused, next.Refused...), append(out.Unknown, next.Unknown...)
		out.Err = errors.Join(out.Err, next.Err)
	}
}

// identity identifies an event with an id.
type identity struct{ key, id string }

func withoutID(events []api.Event) []api.Event {
	var list []api.Event
	for _, e := range events {
		if e.ID == "" {
			list = append(list, e)
		}
	}
	return list
}

// pauseBetween waits 50 ms after the first attempt, and twice as long after each
// further attempt, up to a second. It returns false if ctx ends before.
func pauseBetween(ctx context.Context, attempt int) bool {
	return pause.For(ctx, min(50*time.Millisecond<<min(attempt-1, 10), time.Second))
}
