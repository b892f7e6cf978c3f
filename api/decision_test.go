package api_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func throttled() api.Transition {
	return api.Transition{
		Rule: "api", Key: "user:42", State: api.StateThrottled, Level: 100, Limit: 10, WindowMs: 60_000,
		Used: 11, Version: 4_000, AtMs: 5_000, SinceMs: 4_000, UntilMs: 64_000, ExpiresMs: 70_000,
	}
}

func TestMessageIDAndSubject(t *testing.T) {
	for _, c := range []struct {
		state       api.State
		level       int
		key         string
		id, subject string
	}{
		{api.StateThrottled, 100, "user:42", "sc/throttle/api/100/60000/throttled/4000/64000/user:42",
			"sc.throttle.api.user:42"},
		{api.StateReleased, 100, "user:42", "sc/throttle/api/100/60000/released/4000/user:42",
			"sc.throttle.api.user:42"},
		{api.StateRaised, 100, "user:42", "sc/alert/api/100/60000/raised/4000/user:42", "sc.alert.api.100.user:42"},
		{api.StateCleared, 80, "user:42", "sc/alert/api/80/60000/cleared/4000/user:42", "sc.alert.api.80.user:42"},
		{api.StateThrottled, 100, "a\x00 b", "sc/throttle/api/100/60000/throttled/4000/64000/~YQAgYg",
			"sc.throttle.api.~YQAgYg"},
	} {
		for _, renewal := range []bool{false, true} {
			tr := throttled()
			tr.State, tr.Level, tr.Key, tr.Renewal = c.state, c.level, c.key, renewal
			if id, subject := tr.MessageID("sc"), tr.Subject("sc"); id != c.id || subject != c.subject {
				t.Errorf("%s, renewal %t: %s and %s, want %s and %s", c.state, renewal, id, subject, c.id, c.subject)
			}
		}
	}
}

func TestTransitionFields(t *testing.T) {
	contract := []string{"at_ms", "expires_ms", "id", "key", "level", "limit", "rule", "since_ms", "state",
		"until_ms", "used", "version", "window_ms"}
	flagged := throttled()
	flagged.Shadow, flagged.Renewal = true, true
	more := append(slices.Clone(contract), "renewal", "shadow")
	slices.Sort(more)
	for name, c := range map[string]struct {
		transition api.Transition
		want       []string
	}{
		"one": {throttled(), contract}, "a zero one": {api.Transition{}, contract}, "one with flags": {flagged, more},
	} {
		if diff := cmp.Diff(c.want, fieldsOf(t, c.transition)); diff != "" {
			t.Errorf("fields of %s (-contract +got):\n%s", name, diff)
		}
	}
}

func fieldsOf(t *testing.T, v any) []string {
	t.Helper()
	text, err := json.Marshal(v)
	testkit.Must(t, err)
	var fields map[string]any
	testkit.Must(t, json.Unmarshal(text, &fields))
	return slices.Sorted(maps.Keys(fields))
}
