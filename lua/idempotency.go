package lua

// Memory remembers the answer to one call under an idempotency key; see idempotency.lua.
type Memory struct {
	Call        int    // index into CheckArgs.Calls; the list is in their order
	Name        string // of its key in Redis
	Fingerprint string // of what is asked for, without spaces
	TTLMs       int64  // how long a new answer is remembered; 0: it is not, an older one is found
}
