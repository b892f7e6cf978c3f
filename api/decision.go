package api

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// State is what a transition says about its key.
type State string

// The states. Throttle decisions are throttled or released, alerts raised or cleared.
const (
	StateThrottled State = "throttled"
	StateReleased  State = "released"
	StateRaised    State = "raised"
	StateCleared   State = "cleared"
)

// LevelThrottled is the top level, at 100 percent of a limit.
const LevelThrottled = 100

// Transition is the payload of a throttle decision or an alert. All times are
// milliseconds since 1970 by Redis's clock.
//
// A subscriber orders the messages of one subject by Version: one with a lower
// Version than the last it applied is a late copy and is ignored.
type Transition struct {
	ID    string `json:"id"`
	Rule  string `json:"rule"`
	Key   string `json:"key"`
	State State  `json:"state"`
	// Level is the percentage of the limit that this is about, 100 for throttle decisions.
	Level    int   `json:"level"`
	Limit    int64 `json:"limit"`
	WindowMs int64 `json:"window_ms"`
	// Used is what the window held when the transition was written.
	Used int64 `json:"used"`
	// Version numbers the transitions of the key. Each transition has a greater version than those before it, even if
	// Redis's clock has stepped back.
	Version int64 `json:"version"`
	// AtMs is when the transition was written.
	AtMs int64 `json:"at_ms"`
	// SinceMs is when the key came into this state: for throttled and raised the time of the event that crossed the
	// threshold, otherwise the time at which it fell below.
	SinceMs int64 `json:"since_ms"`
	// UntilMs is when the key falls below if there is no more traffic.
	UntilMs int64 `json:"until_ms"`
	// ExpiresMs is when a subscriber that received nothing newer releases the key.
	ExpiresMs int64 `json:"expires_ms"`
	// Shadow says that the rule only watches: nobody may enforce this.
	Shadow bool `json:"shadow,omitempty"`
	// InFlight: Limit units may be reserved at once. WindowMs is how long a reservation lasts without renewal.
	InFlight bool `json:"in_flight,omitempty"`
	// Renewal says that the key was throttled before and now stays so for longer.
	Renewal bool `json:"renewal,omitempty"`
	// Reason is the reason that the operator gave for a block (IsBlock). A block has no limit and no window.
	Reason string `json:"reason,omitempty"`
	InForce
	// Values are the last values that the key touched, by field, the newest first. Only for rules with publish_values.
	Values *Values `json:"values,omitempty"`
	// TraceParent is the W3C trace context of the fold that wrote the transition. It is empty if no event of the fold
	// had one. The message's header traceparent has the trace context of its publishing.
	TraceParent string `json:"-"`
	// TraceState goes with TraceParent, as in the header tracestate.
	TraceState string `json:"-"`
}

// Values are lists of values by their field.
type Values map[string][]string

// IsThrottle reports whether it is a throttle decision, not an alert.
func (t Transition) IsThrottle() bool {
	return t.State == StateThrottled || t.State == StateReleased
}

// Subject returns the subject that the transition is published to.
func (t Transition) Subject(prefix string) string {
	if t.IsThrottle() {
		return ThrottleSubject(prefix, t.Rule, t.Key)
	}
	return alertSubject(prefix, t.Rule, t.Level, t.Key)
}

// MessageID returns the id by which JetStream recognizes a copy. It is made of the transition's content alone, so
// that it stays the same when the transition is written again after a failover. Version distinguishes two transitions
// that are equal in all else. The id of a throttled key has UntilMs too: if the decision that is written again ends
// at another time, because events were lost, it is not a copy.
func (t Transition) MessageID(prefix string) string {
	kind := "alert"
	if t.IsThrottle() {
		kind = "throttle"
	}
	parts := []string{prefix, kind, t.Rule, strconv.Itoa(t.Level), strconv.FormatInt(t.WindowMs, 10),
		string(t.State), strconv.FormatInt(t.Version, 10)}
	if t.State == StateThrottled {
		parts = append(parts, strconv.FormatInt(t.UntilMs, 10))
	}
	return strings.Join(append(parts, KeyToken(t.Key)), "/")
}

// ReadTransition reads a message that a subscriber received on a subject. It returns an error, wrapping
// ErrBadTransition, for a message that no worker can have published there. A subscriber must ignore such a decision,
// because no worker will release its key.
func ReadTransition(subject string, data []byte) (t Transition, err error) {
	if err := json.Unmarshal(data, &t); err != nil {
		return t, fmt.Errorf("%w: %w", ErrBadTransition, err)
	}
	if err := t.Validate(); err != nil {
		return t, err
	}
	prefix, _, _ := strings.Cut(subject, ".") // a prefix has no dot
	if own := t.Subject(prefix); own != subject {
		return t, fmt.Errorf("%w: a message of %s, on %s", ErrBadTransition, Shorten(own), Shorten(subject))
	}
	return t, nil
}

// Bounds of a transition's times.
const (
	maxMs = 253402300799999 // the last ms of the year 9999, where RFC 3339 ends
	// how long after AtMs a decision may expire: two of the longest windows, and a hold
	maxLastMs = 800 * 24 * 60 * 60 * 1000
)

// Validate reports the first thing wrong with the transition, wrapping ErrBadTransition. A transition without an
// error has a subject within its subtree that NATS accepts, and a time to live.
func (t Transition) Validate() error {
	if !isRuleName(t.Rule) {
		return fmt.Errorf("%w: rule %s, expected 1 to 64 of a-z, 0-9 and -", ErrBadTransition, Shorten(t.Rule))
	}
	if err := ValidateKey(t.Key); err != nil {
		return fmt.Errorf("%w: %w", ErrBadTransition, err)
	}
	switch t.State {
	case StateThrottled, StateReleased:
		if t.Level != LevelThrottled {
			return fmt.Errorf("%w: a throttle decision of level %d, expected %d", ErrBadTransition, t.Level,
				LevelThrottled)
		}
	case StateRaised, StateCleared:
		if t.Level < 1 || t.Level > LevelThrottled {
			return fmt.Errorf("%w: level %d, expected 1 to %d", ErrBadTransition, t.Level, LevelThrottled)
		}
	default:
		return fmt.Errorf("%w: unknown state %s", ErrBadTransition, Shorten(string(t.State)))
	}
	if err := t.validateInForce(); err != nil {
		return err
	}
	leastWindow := int64(1)
	if t.IsBlock() {
		leastWindow = 0
	}
	for _, f := range []struct {
		name             string
		n, least, atMost int64
	}{
		{"limit", t.Limit, 0, 1 << 53}, {"window", t.WindowMs, leastWindow, maxMs}, {"used", t.Used, 0, 1 << 53},
		{"version", t.Version, 1, 1 << 53}, {"at", t.AtMs, 0, maxMs},
		{"since", t.SinceMs, 0, maxMs}, {"until", t.UntilMs, 0, maxMs},
		{"expires", t.ExpiresMs, 0, min(maxMs, t.AtMs+maxLastMs)},
	} {
		if f.n < f.least || f.n > f.atMost {
			return fmt.Errorf("%w: %s is %d, expected %d to %d", ErrBadTransition, f.name, f.n, f.least, f.atMost)
		}
	}
	return nil
}

func isRuleName(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 64
}

// At returns AtMs as a time.
func (t Transition) At() time.Time { return time.UnixMilli(t.AtMs).UTC() }
