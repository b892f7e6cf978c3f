package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
)

func entries(ms ...int64) (list []api.HistoryEntry) {
	for _, at := range ms {
		list = append(list, api.HistoryEntry{AtMs: at})
	}
	return list
}

func TestHistoryIsMergedNewestFirst(t *testing.T) {
	sources := []source{{entries: entries(9, 5, 1), places: []string{"a", "b", "c"}},
		{entries: entries(7), places: []string{"d"}, reached: "x"},
		{entries: entries(5, 4), places: []string{"e", "f"}}}
	got, more := mergeHistory(sources, 4)
	if len(got) != 4 || got[0].AtMs != 9 || got[1].AtMs != 7 || got[3].AtMs != 5 || !more {
		t.Errorf("%+v, %v", got, more)
	}
	if sources[0].reached != "b" || sources[1].reached != "d" || sources[2].reached != "e" {
		t.Errorf("%+v", sources)
	}
	if got, more = mergeHistory(sources, 2); len(got) != 2 || more {
		t.Errorf("%+v, %v", got, more)
	}
	if got, more = mergeHistory(sources, 2); len(got) != 0 || more {
		t.Errorf("%+v, %v", got, more)
	}
}

func TestHistoryPlaces(t *testing.T) {
	for text, want := range map[string][3]string{"": {}, ",,": {},
		"12-34,56-api,78-0": {"12-34", "56-api", "78-0"}, ",56-a-b,": {"", "56-a-b", ""}} {
		if got, err := parseHistoryPlaces(text); err != nil || got != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, bad := range []string{",", "a,,", "1-2,3-4,5", "1-2,3-*,5-6", "1-2,,+", "18446744073709551616-1,,",
		",,18446744073709551616-0", ",,1-18446744073709551616", ",,0-0", ",,00-0"} {
		if _, err := parseHistoryPlaces(bad); !errors.Is(err, api.ErrBadRequest) || !strings.Contains(err.Error(),
			fmt.Sprintf("before=%q", bad)) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if !olderDecision("9-b", "10-a") || !olderDecision("9-a", "9-b") || olderDecision("9-b", "9-b") {
		t.Error("decisions are ordered by time, then by rule")
	}
}

// transitions fail with an error.
type transitions struct{ error }

func (t transitions) Alerts(context.Context, string, string, int) ([]api.Transition, []string, error) {
	return nil, nil, t.error
}

func (t transitions) Decisions(context.Context, string) ([]api.Transition, error) { return nil, nil }

// A place that the source of transitions does not know is the caller's mistake. It is not the caller's mistake if
// NATS is away.
func TestHistoryTellsMistakesFromOutages(t *testing.T) {
	ask := func(err error) (api.History, error) {
		s := &Service{config: Config{Transitions: transitions{err}}}
		return s.History(t.Context(), HistoryRequest{Key: "user:1", N: 10, Before: "7-8,,"})
	}
	if _, err := ask(fmt.Errorf("%w: place 7-8", api.ErrBadRequest)); !errors.Is(err, api.ErrBadRequest) ||
		!strings.Contains(err.Error(), `before="7-8,,"`) {
		t.Errorf("a place that is not known: %v", err)
	}
	if h, err := ask(errors.New("no responders")); err != nil || len(h.LeftOut) != 2 || h.LeftOut[1] != natsAway {
		t.Errorf("NATS is away: %+v, %v", h, err)
	}
}
