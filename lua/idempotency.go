package lua

// Replay remembers the answer to one call under an idempotency key; see idempotency.lua.
type Replay struct {
	Call        int    // index into CheckArgs.Calls; the list is in the order of the calls
	Name        string // of its key in Redis
	Fingerprint string // of the request, without spaces
	TTLMs       int64  // how long a new answer is remembered; 0: it is not remembered, but an older answer is found
}
