package api

// Overview lists which keys are throttled, which are near a limit and what is reserved, from one reading. Each list
// has a bound.
type Overview struct {
	Throttled []Throttled      // by rules that are enforced, the first to be released first
	Next      string           // the `after` of GET /v1/throttled for more of these
	ByRule    map[string]int64 // rule → keys that it throttles
	// Near are keys at an alert level and below the limit, of rules that are enforced and of shadow rules, the nearest
	// first. UntilMs is when the level ends with no more traffic. NearEnforced and NearShadow count all of them.
	Near                     []Throttled
	NearEnforced, NearShadow int64
	Reserved                 []ReservedKey // the most units first
	ReservedKeys             int64         // all of them
}

// ReservedKey is what is reserved of one key and not settled yet.
type ReservedKey struct {
	Key          string `json:"key"`
	Rule         string `json:"rule"`
	Units        int64  `json:"units"`
	Reservations int64  `json:"reservations"`
	FirstMs      int64  `json:"first_ms"` // when the first of them expires
	LastMs       int64  `json:"last_ms"`
	// InFlight is how many units may be reserved at once under the rule; 0: it has no such window.
	InFlight int64 `json:"in_flight,omitempty"`
}
