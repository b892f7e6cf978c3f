package api

import (
	"cmp"
	"fmt"
	"time"
)

// CheckRequest asks whether Key may spend Cost units now, or, with Checks,
// whether all of them may: all are charged or none is.
type CheckRequest struct {
	Key    string         `json:"key,omitempty"`
	Cost   int64          `json:"cost,omitempty"` // 0 means 1
	Mode   Mode           `json:"mode,omitempty"` // empty means take; beside Checks: for those that have none
	Checks []CheckRequest `json:"checks,omitempty"`
	// Values are the fields whose different values the rules count, such as {"user": "alice"}. Other fields are
	// ignored.
	Values map[string]string `json:"values,omitempty"`
}

// Mode says what a check does with its cost.
type Mode string

// The modes of a check.
const (
	// ModeTake charges the cost if there is room for it. It is the default.
	ModeTake Mode = "take"
	// ModeLook asks whether there is room for the cost and charges nothing.
	ModeLook Mode = "look"
	// ModeCharge is for what has already happened: the cost counts in full, even above the limit. Allowed then says
	// whether the cost was within the limit.
	ModeCharge Mode = "charge"
)

// Or returns the mode, or other if the mode is empty.
func (m Mode) Or(other Mode) Mode {
	if m == "" {
		return other
	}
	return m
}

// Validate refuses text that is not a mode. The error wraps ErrBadRequest.
func (m Mode) Validate() error {
	switch m {
	case "", ModeTake, ModeLook, ModeCharge:
		return nil
	}
	return fmt.Errorf("%w: mode %s, expected %s, %s or %s", ErrBadRequest, Shorten(string(m)), ModeTake, ModeLook,
		ModeCharge)
}

// ValidateModes refuses modes that cannot be together in one call that charges all of its keys or none. A charge
// counts what has happened, whatever the other checks say, so a call has only charges or none.
func ValidateModes(checks []CheckRequest) error {
	for i, c := range checks {
		if err := c.Mode.Validate(); err != nil {
			return fmt.Errorf("checks[%d]: %w", i, err)
		}
		if first := checks[0].Mode; (c.Mode == ModeCharge) != (first == ModeCharge) {
			return fmt.Errorf("%w: checks[%d]: mode %s beside mode %s of checks[0]: "+
				"the checks of a call are all of mode charge, or none is", ErrBadRequest, i, c.Mode.Or(ModeTake),
				first.Or(ModeTake))
		}
	}
	return nil
}

// Source says who decided.
type Source string

// The sources of an answer.
const (
	SourceRedis Source = "redis" // the shared count
	SourceCache Source = "cache" // a denial that is known from before, at least until retry_after_ms
	SourceLease Source = "lease" // units of the shared count that the server or the client has reserved
	SourceLocal Source = "local" // this process's own count, while Redis is away
	// nobody counted: no rule matches, or Redis is away and the rule says allow or deny
	SourcePolicy Source = "policy"
)

// NoRuleNote is the note of an answer from SourcePolicy if no rule matches the key.
const NoRuleNote = "no rule matches this key"

// FromMemory reports whether the shared count was asked earlier, not for this answer.
func (s Source) FromMemory() bool { return s == SourceCache || s == SourceLease }

// CheckAnswer is the answer to one key.
type CheckAnswer struct {
	Allowed bool `json:"allowed"`
	// Rule is the rule that decided. It is empty if no rule decides; then the key is allowed.
	Rule string `json:"rule"`
	Key  string `json:"key"`
	Cost int64  `json:"cost"`
	// Windows holds one entry per window of the rule, in the rule's order.
	Windows []WindowState `json:"windows"`
	// RetryAfterMs is the shortest wait after which the same request is allowed if nothing else is charged in the
	// meantime, and nothing else changes: at RetryAfterMs-1 it is still denied. Below 0, no wait helps. For a block it
	// is the time until the block ends. After a charge that went over the limit, it is the wait for one unit.
	RetryAfterMs int64  `json:"retry_after_ms"`
	Source       Source `json:"source"`
	// Charged: the cost counts although Allowed is false, because the check was of ModeCharge or the rule says so
	// (on_deny: charge; in a replay, what the rule says now).
	Charged bool `json:"charged,omitempty"`
	// Replayed: the request was answered before (Repeatable), and this is that answer. Nothing was charged again.
	Replayed bool `json:"replayed,omitempty"`
	InForce
	// Shadow is what each shadow rule that matches the key would have done, in the order of the rules. Shadow rules
	// are evaluated on the same count and decide nothing. Shadow is empty if they were not evaluated: while Redis is
	// away.
	Shadow []ShadowAnswer `json:"shadow,omitempty"`
	// Note says why no rule decided.
	Note string `json:"note,omitempty"`
	ByOperator
	// LeaseMs is how long units of the key may be leased (LeaseRequest); 0: it takes no leases.
	LeaseMs int64 `json:"lease_ms,omitempty"`
}

// ShadowAnswer is what one shadow rule would have done, had it decided.
type ShadowAnswer struct {
	Rule    string `json:"rule"`
	Allowed bool   `json:"allowed"`
	// RetryAfterMs is the wait after which the rule would have allowed the request. It is 0 if the rule would have
	// allowed it, and -1 if it never could, because the cost is above its limit.
	RetryAfterMs int64         `json:"retry_after_ms"`
	Windows      []WindowState `json:"windows"`
}

// WindowState is the state of a key in one window, after the check.
type WindowState struct {
	Limit int64 `json:"limit"`
	// WindowMs is how long the window is; 0 if it is InFlight.
	WindowMs  int64 `json:"window_ms,omitempty"`
	Used      int64 `json:"used"`
	Remaining int64 `json:"remaining"` // 0 if InForce denies
	// EmptyMs is how long until the window is empty if nothing else is charged.
	EmptyMs int64 `json:"empty_ms"`
	// NextFreeMs is how long until the first units come back; 0 if none are used. If InForce denies, it is not less
	// than how long that lasts.
	NextFreeMs int64 `json:"next_free_ms"`
	WindowKind
}

// WindowKind says what a window counts if it is not a sliding window of costs.
type WindowKind struct {
	Periodic
	// InFlight: Limit units may be reserved at once, whatever the time.
	InFlight bool `json:"in_flight,omitempty"`
	// Distinct is the field whose different values are counted. If Used is Limit + 1, the number is not known further.
	Distinct string `json:"distinct,omitempty"`
}

// NewWindowState returns the state of a window of which some units are used. nextFree is how long until the first of
// them come back, and empty is how long until all have; both are 0 if none are used.
func NewWindowState(limit int64, window time.Duration, used int64, nextFree, empty time.Duration) WindowState {
	return WindowState{Limit: limit, WindowMs: window.Milliseconds(), Used: used, Remaining: max(0, limit-used),
		EmptyMs: empty.Milliseconds(), NextFreeMs: nextFree.Milliseconds()}
}

// After returns the state that many milliseconds later, if nothing was charged in the meantime. Used stays the same
// until all units have come back, because it is not known when the units after the first ones come back.
func (w WindowState) After(ms int64) WindowState {
	if w.EmptyMs <= ms {
		return WindowState{Limit: w.Limit, WindowMs: w.WindowMs, Remaining: w.Limit, WindowKind: w.WindowKind}
	}
	w.EmptyMs, w.NextFreeMs, w.Remaining = w.EmptyMs-ms, max(w.NextFreeMs-ms, 1), max(0, w.Limit-w.Used)
	return w
}

// As returns the state of a window as that of a window of kind k.
func (w WindowState) As(k WindowKind) WindowState {
	if w.WindowKind = k; k.InFlight {
		w.WindowMs = 0
	}
	return w
}

// OfValues reports whether the window counts different values.
func (k WindowKind) OfValues() bool { return k.Distinct != "" }

// Tightest returns the window that says most about when a key is admitted again; see CompareTightness. It is nil if
// there is no window.
func Tightest(list []WindowState) *WindowState {
	var tightest *WindowState
	for i := range list {
		if tightest == nil || CompareTightness(&list[i], tightest) < 0 {
			tightest = &list[i]
		}
	}
	return tightest
}

// CompareTightness is below 0 if a is tighter than b: less of it is left, or as much, and its first units come back
// later.
func CompareTightness(a, b *WindowState) int {
	return cmp.Or(cmp.Compare(a.Remaining, b.Remaining), cmp.Compare(b.NextFreeMs, a.NextFreeMs))
}

// ChecksAnswer is the answer to a request with Checks.
type ChecksAnswer struct {
	Allowed bool `json:"allowed"`
	// Atomic says that one script decided all of them. It is false if their keys are in several partitions of a
	// Cluster: then a race can charge some keys of a denied request.
	Atomic       bool          `json:"atomic"`
	RetryAfterMs int64         `json:"retry_after_ms"`
	Replayed     bool          `json:"replayed,omitempty"` // see CheckAnswer
	Checks       []CheckAnswer `json:"checks"`
}

// KeyState is the answer to a peek at one key.
type KeyState struct {
	Key string `json:"key"`
	// Rule is the rule that decides; empty if only shadow rules match the key.
	Rule    string        `json:"rule"`
	Windows []WindowState `json:"windows"`
	InForce
	// Shadow has the state of the key under the shadow rules that match it.
	Shadow []ShadowState `json:"shadow,omitempty"`
	SetByOperator
	// Values are the values that its rules count, if the caller asked for them.
	Values []FieldValues `json:"values,omitempty"`
}

// FieldValues are the values of a field that a key touched, the newest first.
type FieldValues struct {
	Field string `json:"field"`
	// Hashed: the rule has `hash`, so these are keyed hashes.
	Hashed bool        `json:"hashed,omitempty"`
	Values []SeenValue `json:"values"`
}

// SeenValue is a value and when it was last seen, in ms since 1970.
type SeenValue struct {
	Value      string `json:"value"`
	LastSeenMs int64  `json:"last_seen_ms"`
}

// ShadowState is the state of a key under a shadow rule.
type ShadowState struct {
	Rule    string        `json:"rule"`
	Windows []WindowState `json:"windows"`
}

// Throttled is one key that is over a limit now.
type Throttled struct {
	Key      string `json:"key"`
	Rule     string `json:"rule"`
	Limit    int64  `json:"limit"`
	WindowMs int64  `json:"window_ms"`
	Periodic
	SinceMs int64 `json:"since_ms"`
	// UntilMs is when the key falls below its limit if there is no more traffic, or when a block ends; 0: a block
	// without an end.
	UntilMs int64 `json:"until_ms"`
	// Used is what the window holds now.
	Used int64 `json:"used"`
	InForce
	// Reason is why an operator blocked the key (IsBlock).
	Reason string `json:"reason,omitempty"`
	// Shadow says that the rule only watches: checks allow the key.
	Shadow bool `json:"shadow,omitempty"`
	// InFlight: Limit units may be reserved at once. WindowMs is how long a reservation lasts without renewal.
	InFlight bool `json:"in_flight,omitempty"`
	// Distinct is the field whose different values the window counts.
	Distinct string `json:"distinct,omitempty"`
}

// Problem is an error body by RFC 9457. Type is "urn:streamcounter:" and the
// error's name.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// RequestID is the X-Request-Id of the answer. It is in the server's traces too, and in its log for 5xx.
	RequestID string `json:"request_id,omitempty"`
}

// Each is the answer to one of several requests that are decided independently, or its error.
type Each struct {
	CheckAnswer
	Err error
}
