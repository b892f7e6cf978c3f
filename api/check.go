package api

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
	SourceLocal  Source = "local"  // this process's own count, while Redis is away
	SourcePolicy Source = "policy" // nobody counted: no rule matches, or Redis is away and the rule says allow or deny
)

// CheckAnswer is the answer to one key.
type CheckAnswer struct {
	Allowed bool   `json:"allowed"`
	Rule    string `json:"rule"`
	Key     string `json:"key"`
	Cost    int64  `json:"cost"`
	// Windows holds one entry per window of the rule, in the rule's order.
	Windows []WindowState `json:"windows"`
	// RetryAfterMs is the shortest wait after which the same request is allowed
	// if nothing else is spent meanwhile: at RetryAfterMs-1 it is still denied.
	RetryAfterMs int64  `json:"retry_after_ms"`
	Source       Source `json:"source"`
	// Shadow says that the rule only watches; WouldDeny that it would have denied.
	Shadow    bool `json:"shadow,omitempty"`
	WouldDeny bool `json:"would_deny,omitempty"`
	// Note says why nobody counted, where Source is policy.
	Note string `json:"note,omitempty"`
}

// WindowState is where a key stands in one window, after the check.
type WindowState struct {
	Limit     int64 `json:"limit"`
	WindowMs  int64 `json:"window_ms"`
	Used      int64 `json:"used"`
	Remaining int64 `json:"remaining"`
	// ResetMs is how long until the window is empty if nothing else is spent.
	ResetMs int64 `json:"reset_ms"`
	// MoreMs is how long until the first units come back; 0 where none are used.
	MoreMs int64 `json:"-"`
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
	Key     string        `json:"key"`
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
}

// Problem is an error body by RFC 9457. Type is "urn:streamcounter:" and the
// error's name.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}
