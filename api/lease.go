package api

// LeaseRequest takes, renews or ends (Want is 0) a lease of a hot key. The client may spend the units of a lease
// without a call. A request with an ID charges what was spent. It may not be sent twice. If its outcome is not known,
// no unit of the lease may be spent any more.
type LeaseRequest struct {
	Key string `json:"key"`
	// ID is the id in the last answer, and Had its units; both are empty for a new lease.
	ID  string `json:"id,omitempty"`
	Had int64  `json:"had,omitempty"`
	// Used of these units were spent and are charged. Keep of them may still be spent during the request. The rest is
	// given back.
	Used int64 `json:"used,omitempty"`
	Keep int64 `json:"keep,omitempty"`
	// Want is how many units the client wants from now on, in multiples of Least (0 means 1).
	Want  int64 `json:"want,omitempty"`
	Least int64 `json:"least,omitempty"`
}

// LeaseAnswer has the units of a lease and the state of its key. The client may spend the units for LeaseMs, counted
// from when it sent the request. LeaseMs is 0 if the key takes no leases any more. If the lease got no units,
// RetryAfterMs is the wait for Least units.
type LeaseAnswer struct {
	ID    string `json:"id"` // empty if the lease has no units
	Units int64  `json:"units"`
	// Expired: the lease had ended before, and all of its units were charged.
	Expired bool `json:"expired,omitempty"`
	// NowMs is Redis's clock; 0 if Redis was not asked.
	NowMs int64 `json:"now_ms"`
	CheckAnswer
}
