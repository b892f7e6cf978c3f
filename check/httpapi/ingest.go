package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/inflight"
	"github.com/streamcounter/streamcounter/internal/tracing"
	"github.com/streamcounter/streamcounter/stream"
)

// postEvents appends a JSON array of events or one JSON object per line. A bad event is reported by its number, and
// the others are appended.
func (s *Server) postEvents(w http.ResponseWriter, r *http.Request) error {
	body, free, err := s.readBody(w, r, s.events, maxEventsBody)
	defer free()
	if err != nil {
		return err
	}
	done, err := s.appendTurn(r.Context(), int64(len(body)))
	if err != nil {
		return err
	}
	defer done()
	r, err = withKey(r)
	if err != nil {
		return err
	}
	events, lines, bad, more, err := decodeEvents(body, s.checks.ValidateEvent)
	if err != nil {
		return err
	}
	if err := s.once(r, body, events, lines); err != nil {
		return err
	}
	if err := s.admit(r.Context(), events); err != nil {
		s.metrics.refused.Add(float64(len(events)))
		return err
	}
	out := s.appendAll(r, events)
	answer := eventsAnswer{out.Appended, bad, more, len(out.Refused), len(out.Unknown)}
	if answer.Refused+answer.Unknown > 0 {
		failure := fmt.Errorf("%w: %w", api.ErrUnavailable, out.Err)
		if errors.Is(out.Err, api.ErrOutcomeUnknown) {
			failure = out.Err
		}
		problem := identify(w, r, problemOf(failure), failure)
		return writeJSON(w, problem.Status, eventsProblem{problem, &answer})
	}
	return writeJSON(w, http.StatusAccepted, answer)
}

// appendTurn waits until a body of so many bytes may be decoded and appended.
func (s *Server) appendTurn(ctx context.Context, size int64) (done func(), err error) {
	size = min(size, appendedBytes)
	waiting, cancel := context.WithTimeout(ctx, s.config.AppendTimeout)
	defer cancel()
	if err := s.appending.Acquire(waiting, size); err != nil {
		if ctx.Err() == nil {
			err = s.busy(busyMemory, inflight.ErrFull.Error())
		}
		return nil, err
	}
	return func() { s.appending.Release(size) }, nil
}

// Bounds of what one request appends, and of the errors in its answer: a body of only bad lines must not cost more
// than a body of good ones.
const (
	maxEvents   = 100_000
	maxRejected = 1000
)

// decodeEvents reads a JSON array of events, or lines of one event each. lines has the number of each event's line,
// or of its array element, from 1. bad has the first events that are bad or that validate refuses, and more counts the
// others. It returns an error if the body cannot be split into events at all, or has too many.
func decodeEvents(body []byte, validate func(api.Event) error) (events []api.Event, lines []int, bad []rejected,
	more int, err error) {
	bad = []rejected{}
	take := func(n int, raw []byte) {
		e, err := DecodeEvent(raw)
		if err == nil {
			err = validate(e)
		}
		switch {
		case err == nil:
			events, lines = append(events, e), append(lines, n)
		case len(bad) < maxRejected:
			bad = append(bad, rejected{n, err.Error()})
		default:
			more++
		}
	}
	tooMany := fmt.Errorf("%w: over %d events", api.ErrBodyTooLarge, maxEvents)
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	if len(trimmed) == 0 {
		return nil, nil, nil, 0, fmt.Errorf("%w: the body is empty, expected a JSON array or one JSON object per line",
			api.ErrBadRequest)
	}
	if trimmed[0] == '[' {
		dec := json.NewDecoder(bytes.NewReader(body))
		var raw json.RawMessage
		_, err := dec.Token()
		for n := 1; err == nil && dec.More(); n++ { // one by one: 8 MiB hold four million of them
			if n > maxEvents {
				return nil, nil, nil, 0, tooMany
			}
			if err = dec.Decode(&raw); err == nil {
				take(n, raw)
			}
		}
		if err != nil || !json.Valid(body) {
			return nil, nil, nil, 0, badJSON(json.Unmarshal(body, new([]json.RawMessage)), body)
		}
		return events, lines, bad, more, nil
	}
	n := 0
	for line := range bytes.Lines(body) {
		n++
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if len(events)+len(bad)+more == maxEvents {
				return nil, nil, nil, 0, tooMany
			}
			take(n, line)
		}
	}
	return events, lines, bad, more, nil
}

var eventFields = []string{"key", "count", "id", "values"}

// DecodeEvent reads one event. Unknown fields are ignored, as on the stream. A missing count means 1.
func DecodeEvent(raw []byte) (api.Event, error) {
	var in struct {
		Key   *string `json:"key"`
		Count *int64  `json:"count"`
		ID    string  `json:"id"`
		// Values are other fields of the event.
		Values map[string]string `json:"values"`
	}
	if err := unambiguous(raw, eventFields); err != nil {
		return api.Event{}, err
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return api.Event{}, fmt.Errorf("%w in %s", badJSON(err, raw), api.Shorten(string(raw)))
	}
	if in.Key == nil {
		return api.Event{}, fmt.Errorf("%w: no \"key\" in %s", api.ErrBadKey, api.Shorten(string(raw)))
	}
	e := api.Event{Key: *in.Key, Count: 1, ID: in.ID, Values: in.Values}
	if in.Count != nil {
		e.Count = *in.Count
	}
	return e, e.Validate()
}

// appendAll puts valid events into the log and counts the outcomes. The events continue the trace of the request:
// that of its span, or that of its header if this process makes no spans.
func (s *Server) appendAll(r *http.Request, events []api.Event) stream.Outcome {
	ctx, cancel := context.WithTimeout(r.Context(), s.config.AppendTimeout)
	defer cancel()
	ctx, span := tracing.StartAppend(ctx, s.config.Tracer, s.config.Log.Streams(), len(events))
	of := span.Context()
	if s.config.Tracer == nil {
		of = tracing.Parse(r.Header.Get("traceparent"), strings.Join(r.Header.Values("tracestate"), ","))
	}
	if parent, state := tracing.Format(of); parent != "" {
		for i := range events {
			events[i].TraceParent, events[i].TraceState = parent, state
		}
	}
	out := s.config.Log.Append(ctx, events)
	span.End(out.Err)
	s.metrics.appended.Add(float64(out.Appended))
	s.metrics.refused.Add(float64(len(out.Refused)))
	s.metrics.unknown.Add(float64(len(out.Unknown)))
	return out
}
