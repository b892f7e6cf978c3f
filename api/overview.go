package api

// Overview lists which keys are throttled, which are near a limit and what is reserved, from one reading. Each list
// has a bound. The page receives it as JSON.
type Overview struct {
	Throttled []Throttled      `json:"rows"`           // by rules that are enforced, the first to be released first
	Next      string           `json:"next,omitempty"` // the `after` of GET /v1/throttled for more of these
	ByRule    map[string]int64 `json:"by_rule"`        // rule → keys that it throttles
	// Near are keys at an alert level and below the limit, of rules that are enforced and of shadow rules, the nearest
	// first. UntilMs is when the level ends with no more traffic. NearEnforced and NearShadow count all of them.
	Near         []Throttled   `json:"near"`
	NearEnforced int64         `json:"near_enforced"`
	NearShadow   int64         `json:"near_shadow"`
	Reserved     []ReservedKey `json:"reserved"`      // the most units first
	ReservedKeys int64         `json:"reserved_keys"` // all of them
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
