package stream

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// Field names of an event. Others are ignored.
const (
	fieldKey   = "key"
	fieldCount = "count"
	fieldID    = "id"
)

// Message is one entry of an event stream as it was read.
type Message struct {
	ID     string
	Values map[string]any
}

// Decode reads an event. The error says what is wrong with it and wraps
// api.ErrBadKey, api.ErrBadCount or api.ErrBadID: such an event is dead.
func (m Message) Decode() (api.Event, error) {
	key, ok := m.Values[fieldKey].(string)
	if !ok {
		return api.Event{}, fmt.Errorf("%w: the event has no field %q", api.ErrBadKey, fieldKey)
	}
	e := api.Event{Key: key, Count: 1}
	if text, ok := m.Values[fieldCount].(string); ok {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return api.Event{}, fmt.Errorf("%w: %s is no integer between 1 and %d", api.ErrBadCount, api.Shorten(text), api.MaxCount)
		}
		e.Count = n
	}
	e.ID, _ = m.Values[fieldID].(string)
	return e, e.Validate()
}

// Ms is the event's time: the millisecond of its ID.
func (m Message) Ms() int64 { return idMs(m.ID) }

func idMs(id string) int64 {
	ms, _, _ := strings.Cut(id, "-")
	n, _ := strconv.ParseInt(ms, 10, 64)
	return n
}
