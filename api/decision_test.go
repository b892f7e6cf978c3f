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

func TestMessageID(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*api.Transition)
		want   string
	}{
		{"as it is", func(*api.Transition) {}, "sc/throttle/api/100/60000/throttled/4000/64000/user:42"},
		{"released", func(t *api.Transition) { t.State = api.StateReleased },
			"sc/throttle/api/100/60000/released/4000/user:42"},
		{"raised", func(t *api.Transition) { t.State = api.StateRaised }, "sc/alert/api/100/60000/raised/4000/user:42"},
		{"cleared", func(t *api.Transition) { t.State, t.Level = api.StateCleared, 80 },
			"sc/alert/api/80/60000/cleared/4000/user:42"},
		{"renewal", func(t *api.Transition) { t.Renewal = true },
			"sc/throttle/api/100/60000/throttled/4000/64000/user:42"},
		{"key that is no token", func(t *api.Transition) { t.Key = "a\x00 b" },
			"sc/throttle/api/100/60000/throttled/4000/64000/~YQAgYg"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := throttled()
			c.change(&tr)
			if got := tr.MessageID("sc"); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestTransitionFields(t *testing.T) {
	contract := []string{"at_ms", "expires_ms", "id", "key", "level", "limit", "rule", "since_ms", "state",
		"until_ms", "used", "version", "window_ms"}
	if diff := cmp.Diff(contract, fieldsOf(t, throttled())); diff != "" {
		t.Errorf("fields (-contract +got):\n%s", diff)
	}
	if diff := cmp.Diff(contract, fieldsOf(t, api.Transition{})); diff != "" {
		t.Errorf("fields of a zero one (-contract +got):\n%s", diff)
	}
	flagged := throttled()
	flagged.Shadow, flagged.Renewal = true, true
	more := append(slices.Clone(contract), "renewal", "shadow")
	slices.Sort(more)
	if diff := cmp.Diff(more, fieldsOf(t, flagged)); diff != "" {
		t.Errorf("fields with both flags (-contract +got):\n%s", diff)
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

func TestTransitionSubject(t *testing.T) {
	for state, want := range map[api.State]string{
		api.StateThrottled: "sc.throttle.api.user:42",
		api.StateReleased:  "sc.throttle.api.user:42",
		api.StateRaised:    "sc.alert.api.100.user:42",
		api.StateCleared:   "sc.alert.api.100.user:42",
	} {
		tr := throttled()
		tr.State = state
		if got := tr.Subject("sc"); got != want {
			t.Errorf("%s: %s, want %s", state, got, want)
		}
	}
}
