package direct

// TakesIdempotency implements client.Idempotent.
func (r *Redis) TakesIdempotency() bool { return true }
