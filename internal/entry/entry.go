// Package entry is the form of an event as an entry of its stream in Redis: the
// fields, their decoding, and the IDs.
package entry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// Field names of an event (api.IsEventField). Others are values, or ignored.
const (
	fieldKey   = "key"
	fieldCount = "count"
	fieldID    = "id"
	fieldTrace = "traceparent" // W3C trace context
	fieldState = "tracestate"
)

// Message is one entry of an event stream, as read.
type Message struct {
	ID     string
	Values map[string]any
	Err    error // why the entry could not be read; nil: it was
}

// Decode reads an event. The error says what is wrong with it and wraps
// api.ErrBadKey, api.ErrBadCount or api.ErrBadID, or is Err. Such an event becomes a dead letter.
func (m Message) Decode() (api.Event, error) {
	if m.Err != nil {
		return api.Event{}, m.Err
	}
	key, ok := m.Values[fieldKey].(string)
	if !ok {
		return api.Event{}, fmt.Errorf("%w: the event has no field %q", api.ErrBadKey, fieldKey)
	}
	e := api.Event{Key: key, Count: 1}
	if text, ok := m.Values[fieldCount].(string); ok {
		n, err := api.ParseCount(text)
		if err != nil {
			return api.Event{}, err
		}
		e.Count = n
	}
	e.ID, _ = m.Values[fieldID].(string)
	return e, e.Validate()
}

// Trace returns the trace context of the event; empty: none.
func (m Message) Trace() (parent, state string) {
	parent, _ = m.Values[fieldTrace].(string)
	state, _ = m.Values[fieldState].(string)
	return parent, state
}

// Ms returns the event's time: the millisecond of its ID.
func (m Message) Ms() int64 { return Ms(m.ID) }

// Ms returns the millisecond of an entry's ID; 0 if it is not an ID.
func Ms(id string) int64 {
	ms, _, _ := strings.Cut(id, "-")
	n, _ := strconv.ParseInt(ms, 10, 64)
	return n
}

// CompareIDs compares the IDs of a stream's entries, like cmp.Compare. A text that is not an ID counts as 0-0.
func CompareIDs(a, b string) int {
	aMs, aSeq := splitID(a)
	bMs, bSeq := splitID(b)
	return cmp.Or(cmp.Compare(aMs, bMs), cmp.Compare(aSeq, bSeq))
}

func splitID(id string) (ms, seq uint64) {
	a, b, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseUint(a, 10, 64)
	seq, _ = strconv.ParseUint(b, 10, 64)
	return ms, seq
}

// Fields returns the names and values of a valid event's entry, for XADD.
func Fields(e api.Event) []any {
	fields := []any{fieldKey, e.Key, fieldCount, e.Count}
	if e.ID != "" {
		fields = append(fields, fieldID, e.ID)
	}
	if e.TraceParent != "" {
		fields = append(fields, fieldTrace, e.TraceParent)
		if e.TraceState != "" {
			fields = append(fields, fieldState, e.TraceState)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Values)) {
		fields = append(fields, name, e.Values[name])
	}
	return fields
}
