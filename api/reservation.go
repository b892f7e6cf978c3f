package api

// ReservationRequest asks to reserve Cost units of Key, or, with Checks, of several keys, all
// or none, for what is known only later.
type ReservationRequest struct {
	CheckRequest
	// TTLMs is how long the reservation stands if nobody settles or renews it; 0 means the
	// in_flight window of the rule, or a minute where it has none.
	TTLMs int64 `json:"ttl_ms,omitempty"`
}

// Reserved is a reservation that stands. Its units count as used until it is committed or
// cancelled. At ExpiresMs they are charged, or free where the rule says on_expire: free, and
// its in-flight slots are free.
type Reserved struct {
	// ID names it to Commit, Cancel and Renew. Whoever has it may settle it.
	ID string `json:"id"`
	// ExpiresMs is when it expires, in ms since 1970 by Redis's clock, and TTLMs how long that
	// was when it was reserved or renewed.
	ExpiresMs int64 `json:"expires_ms"`
	TTLMs     int64 `json:"ttl_ms"`
}

// Reservation is the answer to a request for one key: allowed or denied as a check is; ID is
// empty where it is denied.
type Reservation struct {
	Reserved
	CheckAnswer
}

// ReservationOfAll is the answer to a request with Checks.
type ReservationOfAll struct {
	Reserved
	ChecksAnswer
}

// CommitRequest says what a reservation really cost: Cost units of each of its keys, or of
// each key what Checks say. Neither: what was reserved.
type CommitRequest struct {
	Cost   *int64       `json:"cost,omitempty"`
	Checks []CommitCost `json:"checks,omitempty"`
}

// CommitCost is what one key of a reservation is charged; 0 is allowed.
type CommitCost struct {
	Key  string `json:"key"`
	Cost *int64 `json:"cost"`
}

// RenewRequest has a reservation stand TTLMs from now; 0 means as long as before.
type RenewRequest struct {
	TTLMs int64 `json:"ttl_ms,omitempty"`
}

// ReservationState says what has become of a reservation.
type ReservationState string

// The states of a reservation that was settled or renewed.
const (
	ReservationOpen      ReservationState = "open"
	ReservationCommitted ReservationState = "committed"
	ReservationCancelled ReservationState = "cancelled"
)

// Settlement is the answer to Commit, Cancel and Renew. The same answer comes to one that is
// sent again.
type Settlement struct {
	ID    string           `json:"id"`
	State ReservationState `json:"state"`
	// ExpiresMs is when it expires where it stands; SettledMs when it was settled, else 0.
	ExpiresMs int64 `json:"expires_ms"`
	SettledMs int64 `json:"settled_ms"`
	// Keys is where its keys stand now.
	Keys []KeyState `json:"keys"`
}
