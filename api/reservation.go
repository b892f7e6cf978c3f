package api

// ReservationRequest asks to reserve Cost units of Key, or, with Checks, of several keys, all or none, for a cost
// that is known only later.
type ReservationRequest struct {
	CheckRequest
	// TTLMs is how long the reservation is valid if nobody settles or renews it; 0 means the in_flight window of the
	// rule, or a minute if the rule has none.
	TTLMs int64 `json:"ttl_ms,omitempty"`
}

// Reserved is an open reservation. Its units count as used until it is committed or cancelled. At ExpiresMs they are
// charged, or free if the rule says on_expire: free, and its in-flight slots are free.
type Reserved struct {
	// ID identifies the reservation in Commit, Cancel and Renew. Everybody who has the ID may settle it.
	ID string `json:"id"`
	// ExpiresMs is when it expires, in ms since 1970 by Redis's clock, and TTLMs is how long it was valid when it was
	// reserved or renewed.
	ExpiresMs int64 `json:"expires_ms"`
	TTLMs     int64 `json:"ttl_ms"`
}

// Reservation is the answer to a request for one key: allowed or denied as a check is. ID is empty if it is denied.
type Reservation struct {
	Reserved
	CheckAnswer
}

// ReservationOfAll is the answer to a request with Checks.
type ReservationOfAll struct {
	Reserved
	ChecksAnswer
}

// CommitRequest says what a reservation really cost: Cost units of each of its keys, or for each key the cost in
// Checks. If both are missing, the cost is what was reserved.
type CommitRequest struct {
	Cost   *int64       `json:"cost,omitempty"`
	Checks []CommitCost `json:"checks,omitzero"`
}

// CommitCost is what one key of a reservation is charged; 0 is allowed.
type CommitCost struct {
	Key  string `json:"key"`
	Cost *int64 `json:"cost"`
}

// RenewRequest makes a reservation valid for TTLMs from now; 0 means as long as before.
type RenewRequest struct {
	TTLMs int64 `json:"ttl_ms,omitempty"`
}

// ReservationState is the state of a reservation.
type ReservationState string

// The states of a reservation that was settled or renewed.
const (
	ReservationOpen      ReservationState = "open"
	ReservationCommitted ReservationState = "committed"
	ReservationCancelled ReservationState = "cancelled"
)

// Settlement is the answer to Commit, Cancel and Renew. A request that is sent again gets the same answer.
type Settlement struct {
	ID    string           `json:"id"`
	State ReservationState `json:"state"`
	// ExpiresMs is when the reservation expires if it is open. SettledMs is when it was settled, else 0.
	ExpiresMs int64 `json:"expires_ms"`
	SettledMs int64 `json:"settled_ms"`
	// Keys has the present states of its keys.
	Keys []KeyState `json:"keys"`
}
