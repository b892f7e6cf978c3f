package entry_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/entry"
)

func TestDecode(t *testing.T) {
	for _, c := range []struct {
		name   string
		values map[string]any
		want   api.Event
		err    error
	}{
		{"key and count", map[string]any{"key": "a", "count": "7"}, api.Event{Key: "a", Count: 7}, nil},
		{"no count", map[string]any{"key": "a"}, api.Event{Key: "a", Count: 1}, nil},
		{"largest count", map[string]any{"key": "a", "count": "1000000000"},
			api.Event{Key: "a", Count: 1_000_000_000}, nil},
		{"other fields", map[string]any{"key": "a", "ID": "x", "Count": "9", "trace": "\xff"},
			api.Event{Key: "a", Count: 1}, nil},
		{"id", map[string]any{"key": "a", "id": "order 42 é"}, api.Event{Key: "a", Count: 1, ID: "order 42 é"}, nil},
		{"empty id", map[string]any{"key": "a", "id": ""}, api.Event{Key: "a", Count: 1}, nil},
		{"longest id", map[string]any{"key": "a", "id": strings.Repeat("i", 128)},
			api.Event{Key: "a", Count: 1, ID: strings.Repeat("i", 128)}, nil},
		{"id too long", map[string]any{"key": "a", "id": strings.Repeat("i", 129)}, api.Event{}, api.ErrBadID},
		{"id not UTF-8", map[string]any{"key": "a", "id": "\xff"}, api.Event{}, api.ErrBadID},
		{"id of two lines", map[string]any{"key": "a", "id": "a\nb"}, api.Event{}, api.ErrBadID},
		{"longest key", map[string]any{"key": strings.Repeat("k", 512)},
			api.Event{Key: strings.Repeat("k", 512), Count: 1}, nil},
		{"nothing", nil, api.Event{}, api.ErrBadKey},
		{"no key", map[string]any{"count": "1"}, api.Event{}, api.ErrBadKey},
		{"Key is not key", map[string]any{"Key": "a"}, api.Event{}, api.ErrBadKey},
		{"empty key", map[string]any{"key": ""}, api.Event{}, api.ErrBadKey},
		{"key too long", map[string]any{"key": strings.Repeat("k", 513)}, api.Event{}, api.ErrBadKey},
		{"key not UTF-8", map[string]any{"key": "\xff"}, api.Event{}, api.ErrBadKey},
		{"key of two lines", map[string]any{"key": "a\nb"}, api.Event{}, api.ErrBadKey},
		{"word", map[string]any{"key": "a", "count": "abc"}, api.Event{}, api.ErrBadCount},
		{"empty count", map[string]any{"key": "a", "count": ""}, api.Event{}, api.ErrBadCount},
		{"0", map[string]any{"key": "a", "count": "0"}, api.Event{}, api.ErrBadCount},
		{"-1", map[string]any{"key": "a", "count": "-1"}, api.Event{}, api.ErrBadCount},
		{"above the largest", map[string]any{"key": "a", "count": "1000000001"}, api.Event{}, api.ErrBadCount},
		{"above 64 bits", map[string]any{"key": "a", "count": "99999999999999999999"}, api.Event{}, api.ErrBadCount},
		{"1.5", map[string]any{"key": "a", "count": "1.5"}, api.Event{}, api.ErrBadCount},
		{"1e3", map[string]any{"key": "a", "count": "1e3"}, api.Event{}, api.ErrBadCount},
		{"a sign", map[string]any{"key": "a", "count": "+1"}, api.Event{}, api.ErrBadCount},
		{"a leading zero", map[string]any{"key": "a", "count": "01"}, api.Event{}, api.ErrBadCount},
		{"many zeros", map[string]any{"key": "a", "count": "00000000000000000001"}, api.Event{}, api.ErrBadCount},
		{"space", map[string]any{"key": "a", "count": " 1"}, api.Event{}, api.ErrBadCount},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := entry.Message{ID: "5-0", Values: c.values}.Decode()
			if !errors.Is(err, c.err) || (err == nil && !reflect.DeepEqual(got, c.want)) {
				t.Errorf("%+v, error %v; want %+v, error %v", got, err, c.want, c.err)
			}
		})
	}
}

func TestMessageMs(t *testing.T) {
	for id, want := range map[string]int64{"0-1": 0, "1700000000123-0": 1_700_000_000_123,
		"5-18446744073709551615": 5, "7": 7} {
		if got := (entry.Message{ID: id}).Ms(); got != want {
			t.Errorf("%s: %d ms, want %d", id, got, want)
		}
	}
}
