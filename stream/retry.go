package stream

import (
	"context"
	"errors"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
)

// appendUntil appends, and appends again what has an id and is not known to be
// stored, until all of it is or ctx ends: twice with one id counts once. What
// has no id is sent once.
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
		// A refusal now does not unsay that it may have been stored before.
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
		// Those with ids, which stand for one event each, are told by next.
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

// identity is what tells events with ids apart.
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
// more, up to a second; false when ctx ends before.
func pauseBetween(ctx context.Context, attempt int) bool {
	return pause.For(ctx, min(50*time.Millisecond<<min(attempt-1, 10), time.Second))
}
