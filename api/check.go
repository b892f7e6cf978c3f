package api

import "time"

// CheckRequest asks whether Key may spend Cost units now, or, with Checks,
// whether all of them may: all are charged or none is.
type CheckRequest struct {
	Key    string         `json:"key,omitempty"`
	Cost   int64          `json:"cost,omitempty"` // 0 means 1
	Checks []CheckRequest `json:"checks,omitempty"`
}

// Source says who decided.
type Source string

// The sources of an answer.
const (
	SourceRedis  Source = "redis"  // the shared count
	SourceCache  Source = "cache"  // a denial that the shared count gave before, and that holds until retry_after_ms
	SourceLocal  Source = "local"  // this process's own count, while Redis is away
	SourcePolicy Source = "policy" // nobody counted: no rule matches, or Redis is away and the rule says allow or deny
)

// CheckAnswer is the answer to one key.
type CheckAnswer struct {
	Allowed bool `json:"allowed"`
	// Rule decided; empty where none does, and then the key is allowed.
	Rule string `json:"rule"`
	Key  string `json:"key"`
	Cost int64  `json:"cost"`
	// Windows holds one entry per window of the rule, in the rule's order.
	Windows []WindowState `json:"windows"`
	// RetryAfterMs is the shortest wait after which the same request is allowed
	// if nothing else is charged meanwhile: at RetryAfterMs-1 it is still denied.
	// Below 0 no wait helps.
	RetryAfterMs int64  `json:"retry_after_ms"`
	Source       Source `json:"source"`
	// Shadow is what each shadow rule would have done that matches the key, in their
	// order. They are evaluated on the same count and decide nothing. It is empty where
	// nobody evaluated them: while Redis is away.
	Shadow []ShadowAnswer `json:"shadow,omitempty"`
	// Note says why no rule decided.
	Note string `json:"note,omitempty"`
}

// ShadowAnswer is what one shadow rule would have done, had it decided.
type ShadowAnswer struct {
	Rule    string `json:"rule"`
	Allowed bool   `json:"allowed"`
	// RetryAfterMs is the wait after which it would have allowed the request; 0 where
	// it would have, and -1 where it never could: the cost is above its limit.
	RetryAfterMs int64         `json:"retry_after_ms"`
	Windows      []WindowState `json:"windows"`
}

// WindowState is where a key stands in one window, after the check.
type WindowState struct {
	Limit     int64 `json:"limit"`
	WindowMs  int64 `json:"window_ms"`
	Used      int64 `json:"used"`
	Remaining int64 `json:"remaining"`
	// ResetMs is how long until the window is empty if nothing else is charged.
	ResetMs int64 `json:"reset_ms"`
	// NextFreeMs is how long until the first units come back; 0 where none are used.
	NextFreeMs int64 `json:"next_free_ms"`
}

// NewWindowState gives the state of a window of which some units are used. nextFree
// is how long until the first of them come back, reset until all have; 0 where none
// are used.
func NewWindowState(limit int64, window time.Duration, used int64, nextFree, reset time.Duration) WindowState {
	return WindowState{Limit: limit, WindowMs: window.Milliseconds(), Used: used, Remaining: max(0, limit-used),
		ResetMs: reset.Milliseconds(), NextFreeMs: nextFree.Milliseconds()}
}

// After is the state that many milliseconds later, if nothing was charged meanwhile. Used is as it
// was until all of it has come back: when the units after the first come back is not known.
func (w WindowState) After(ms int64) WindowState {
	if w.ResetMs <= ms {
		return WindowState{Limit: w.Limit, WindowMs: w.WindowMs, Remaining: w.Limit}
	}
	w.ResetMs, w.NextFreeMs = w.ResetMs-ms, max(w.NextFreeMs-ms, 1)
	return w
}

// Tightest is the window that says most about when a key is admitted again: the
// one with least left, and of several the one whose first units come back last;
// nil where there is none.
func Tightest(list []WindowState) *WindowState {
	var tightest *WindowState
	for i := range list {
		w := &list[i]
		if tightest == nil || w.Remaining < tightest.Remaining || w.Remaining == tightest.Remaining &&
			w.NextFreeMs > tightest.NextFreeMs {
			tightest = w
		}
	}
	return tightest
}

// ChecksAnswer is the answer to a request with Checks.
type ChecksAnswer struct {
	Allowed bool `json:"allowed"`
	// Atomic says that one script decided all of them. False where their keys
	// lie in several partitions: then a race can charge some of a denied request.
	Atomic       bool          `json:"atomic"`
	RetryAfterMs int64         `json:"retry_after_ms"`
	Checks       []CheckAnswer `json:"checks"`
}

// KeyState is what a peek at one key says.
type KeyState struct {
	Key string `json:"key"`
	// Rule decides; empty where only shadow rules match the key.
	Rule    string        `json:"rule"`
	Windows []WindowState `json:"windows"`
	// Shadow is where the key stands under the shadow rules that match it.
	Shadow []ShadowState `json:"shadow,omitempty"`
}

// ShadowState is where a key stands under a shadow rule.
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
	SinceMs  int64  `json:"since_ms"`
	UntilMs  int64  `json:"until_ms"`
	// Shadow says that the rule only watches: checks allow the key.
	Shadow bool `json:"shadow,omitempty"`
}

// Problem is an error body by RFC 9457. Type is "urn:streamcounter:" and the
// error's name.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// Each is the answer to one of several requests that are decided each by itself,
// or why there is none.
type Each struct {
	CheckAnswer
	Err error
}
