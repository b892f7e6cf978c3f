package api

// Top is the answer to GET /v1/top.
type Top struct {
	Rules []TopKeys `json:"rules"`
}

// TopKeys are the busiest keys of one rule in this minute and the one before, over all processes, the
// busiest first: by the units that checks asked for, admitted or not, and that events had.
type TopKeys struct {
	Rule string `json:"rule"`
	// SinceMs is when the minute before began; 0: nothing was seen.
	SinceMs int64 `json:"since_ms"`
	// Units of all keys of the rule since then.
	Units int64 `json:"units"`
	// UnlistedAtMost is the most units that a key that is not listed can have.
	UnlistedAtMost int64    `json:"unlisted_at_most"`
	Keys           []TopKey `json:"keys"`
}

// TopKey is one busy key. It has at least Units, and at most AtMost.
type TopKey struct {
	Key    string `json:"key"`
	Units  int64  `json:"units"`
	AtMost int64  `json:"at_most"`
}
