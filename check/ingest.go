package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"unicode/utf8"

	"github.com/streamcounter/streamcounter/api"
)

// Rejected is one line (or array element, counted from 1) that was not taken.
type Rejected struct {
	Line  int    `json:"line"`
	Error string `json:"error"`
}

// postEvents appends a JSON array of events or one JSON object per line. A bad
// one is reported by its number and stops nothing else.
func (s *Service) postEvents(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(w, r, maxEventsBody)
	if err != nil {
		writeProblem(w, err)
		return
	}
	events, rejected, err := DecodeEvents(body)
	if err != nil {
		writeProblem(w, err)
		return
	}
	if err := s.admit(r.Context(), events); err != nil {
		s.config.Metrics.refused.Add(float64(len(events)))
		writeProblem(w, err)
		return
	}
	out := s.Append(r.Context(), events)
	answer := struct {
		Accepted int        `json:"accepted"`
		Rejected []Rejected `json:"rejected"`
		Refused  int        `json:"refused,omitempty"` // certainly not stored
		Unknown  int        `json:"unknown,omitempty"` // stored or not
	}{out.Appended, rejected, len(out.Refused), len(out.Unknown)}
	if answer.Refused+answer.Unknown > 0 {
		failure := fmt.Errorf("%w: %w", api.ErrUnavailable, out.Err)
		if errors.Is(out.Err, api.ErrOutcomeUnknown) {
			failure = out.Err
		}
		writeJSON(w, "application/problem+json", http.StatusServiceUnavailable, struct {
			api.Problem
			Events any `json:"events"`
		}{problemOf(failure), answer})
		return
	}
	writeJSON(w, "application/json", http.StatusAccepted, answer)
}

// DecodeEvents reads a JSON array of events, or lines of one event each. The
// error is for a body that cannot be taken apart at all.
func DecodeEvents(body []byte) (events []api.Event, rejected []Rejected, err error) {
	rejected = []Rejected{}
	take := func(n int, raw []byte) {
		e, err := DecodeEvent(raw)
		if err != nil {
			rejected = append(rejected, Rejected{n, err.Error()})
			return
		}
		events = append(events, e)
	}
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	if len(trimmed) == 0 {
		return nil, nil, fmt.Errorf("%w: the body is empty, expected a JSON array or one JSON object per line", api.ErrBadRequest)
	}
	if trimmed[0] == '[' {
		var list []json.RawMessage
		if err := json.Unmarshal(body, &list); err != nil {
			return nil, nil, badJSON(err, len(body))
		}
		for i, raw := range list {
			take(i+1, raw)
		}
		return events, rejected, nil
	}
	n := 0
	for line := range bytes.Lines(body) {
		n++
		if line = bytes.TrimSpace(line); len(line) > 0 {
			take(n, line)
		}
	}
	return events, rejected, nil
}

// DecodeEvent reads one event. Unknown fields are ignored, as on the stream;
// without a count it is 1.
func DecodeEvent(raw []byte) (api.Event, error) {
	var in struct {
		Key   *string      `json:"key"`
		Count *json.Number `json:"count"`
		ID    string       `json:"id"`
	}
	if !utf8.Valid(raw) {
		// The decoder would put U+FFFD in its place and count another key.
		return api.Event{}, fmt.Errorf("%w: not valid UTF-8: %q", api.ErrBadRequest, raw[:min(len(raw), 40)])
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return api.Event{}, fmt.Errorf("%w: %w in %s", api.ErrBadRequest, err, api.Shorten(string(raw)))
	}
	if in.Key == nil {
		return api.Event{}, fmt.Errorf("%w: no \"key\" in %s", api.ErrBadKey, api.Shorten(string(raw)))
	}
	e := api.Event{Key: *in.Key, Count: 1, ID: in.ID}
	if in.Count != nil {
		n, err := in.Count.Int64()
		if err != nil {
			return api.Event{}, fmt.Errorf("%w: %s is no integer between 1 and %d", api.ErrBadCount, api.Shorten(in.Count.String()), api.MaxCount)
		}
		e.Count = n
	}
	return e, e.Validate()
}
