package consumers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// deadLettersKept is about how many dead letters a partition keeps.
const deadLettersKept = 10_000

// deadLetter is an event or an outbox entry that was taken out of its stream, with the reason.
type deadLetter struct {
	id, reason, body string
	tooLarge         bool   // it is also deleted from its stream
	kind             string // the metric's label, one of deadLetterKinds
}

// The kinds of dead letters that are about one event or one entry. (A letter of ofGaps is about many events.)
const (
	invalid   = "invalid"   // the event has no valid key, count or id
	misplaced = "misplaced" // the event is in another partition than the one that its key belongs to
	refused   = "refused"   // Redis refused to fold the event
	outbox    = "outbox"    // an entry of the outbox that is no transition
)

var deadLetterKinds = []string{invalid, misplaced, refused, outbox}

// deadLetters writes the dead stream of each partition; no other Go code does. Data that cannot be counted or
// published is kept there for a person to read, so that it never blocks a partition. It is safe to use from several
// goroutines.
type deadLetters struct{ *shared }

// ofEvents acknowledges events of partition p, and writes a dead letter for each that was still pending, in one
// script. Sending it again is safe.
func (d *deadLetters) ofEvents(ctx context.Context, p int, letters []deadLetter) error {
	return d.move(ctx, d.acknowledging(p), p, letters)
}

// ofOutbox removes entries of p's outbox, and writes a dead letter for each that was still there, in one script.
// Sending it again is safe. If Redis refuses the write, because the dead stream is of another type, the entries are
// only in the log, and the caller removes them from the outbox.
func (d *deadLetters) ofOutbox(ctx context.Context, p int, letters []deadLetter) error {
	for _, l := range letters {
		d.Log.Error("an outbox entry is not a transition, it becomes a dead letter",
			"stream", d.Keys.Outbox(p), "id", l.id, "reason", l.reason, "body", l.body)
	}
	err := d.move(ctx, source{stream: d.Keys.Outbox(p), levels: d.Keys.Outbox(p)}, p, letters)
	if redisclient.IsRefusal(err) {
		d.Metrics.deadLetters.WithLabelValues(outbox).Add(float64(len(letters)))
		return nil
	}
	return err
}

func (d *deadLetters) move(ctx context.Context, from source, p int, letters []deadLetter) error {
	if len(letters) == 0 {
		return nil
	}
	kept, err := d.take(ctx, from, p, deadLettersKept, letters)
	if err != nil {
		return fmt.Errorf("writing %d dead letters to %s: %w", len(letters), d.Keys.Dead(p), err)
	}
	for i, l := range letters {
		if kept[i] {
			d.Metrics.deadLetters.WithLabelValues(l.kind).Inc()
		}
	}
	return nil
}

// source is the stream that entries are taken from. With a group, its events are acknowledged, and their number is
// recorded in levels. Without a group, entries are deleted.
type source struct{ stream, group, levels string }

func (d *deadLetters) acknowledging(p int) source {
	return source{d.Keys.Events(p), eventlog.Group, d.Keys.Levels(p)}
}

// take takes entries out of their stream, and adds each that was still there to the dead stream, which keeps about
// `keep` letters; 0: none is added. It returns for each letter whether its entry was still there.
func (d *deadLetters) take(ctx context.Context, from source, p int, keep int64, letters []deadLetter) ([]bool, error) {
	args := append(make([]any, 0, 2+4*len(letters)), from.group, keep)
	for _, l := range letters {
		args = append(args, l.id, l.reason, l.body, l.tooLarge)
	}
	r := d.lua.Call(ctx, "deadletter", nil, []string{from.stream, d.Keys.Dead(p), from.levels}, args...)
	return r.Flags(len(letters)), r.End()
}

// acknowledge acknowledges events of partition p that are not counted, and writes no dead letters. It returns how many
// were still pending.
func (d *deadLetters) acknowledge(ctx context.Context, p int, ids []string) (n int, err error) {
	list := make([]deadLetter, len(ids))
	for i, id := range ids {
		list[i].id = id
	}
	pending, err := d.take(ctx, d.acknowledging(p), p, 0, list)
	for _, was := range pending {
		if was {
			n++
		}
	}
	return n, err
}

// ofGaps finds events of these partitions of one server that were trimmed before they were counted, and records them:
// one letter per partition, written by the script that finds the gap. If Redis refuses the call, each partition gets
// a separate call.
func (d *deadLetters) ofGaps(ctx context.Context, parts ...int) error {
	if len(parts) == 0 {
		return nil
	}
	var keys []string
	for _, p := range parts {
		keys = append(keys, d.Keys.Events(p), d.Keys.Dead(p), d.Keys.Levels(p))
	}
	r := d.lua.Call(ctx, "gap", nil, keys, eventlog.Group, deadLettersKept)
	missing, err := r.Integers(len(parts)), r.End() // -1: the server does not have the numbers
	if redisclient.IsRefusal(err) && len(parts) > 1 {
		failed := error(nil)
		for _, p := range parts {
			if err := d.ofGaps(ctx, p); err != nil && failed == nil {
				failed = partitionError{p, err}
			}
		}
		return failed
	}
	for i, n := range missing {
		if n <= 0 {
			continue
		}
		d.Metrics.trimmed.Add(float64(n))
		d.Log.Error("events were trimmed before they were counted: workers were away for longer than the retention, "+
			"or a producer trims too early", "stream", d.Keys.Events(parts[i]), "events", n)
	}
	return err
}

// letterOf returns the dead letter of a message. Its body is the message's fields as JSON, cut after 4 KiB. A message
// that is too large is also deleted.
func letterOf(m entry.Message, kind, reason string) deadLetter {
	text, err := json.Marshal(m.Values)
	if err != nil {
		text = fmt.Appendf(nil, "%v", m.Values)
	}
	if len(text) > 4096 {
		text = append(bytes.ToValidUTF8(text[:4096], nil), "…"...)
	}
	return deadLetter{id: m.ID, reason: reason, body: string(text), tooLarge: m.Err != nil, kind: kind}
}

// letterOfEvent returns the dead letter of an event that was decoded.
func letterOfEvent(e counters.Event, kind string, reason error) deadLetter {
	return letterOf(entry.Message{ID: e.ID, Values: e.Fields}, kind, reason.Error())
}
